// Declares the handlers by which XLA's foreign-function interface calls the kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace poolgrad {

// The handlers of the stages of a call ("instantiate", "execute") as capsules in a dict, for
// jax.ffi.register_ffi_target; None where this was built without XLA's headers.
nanobind::object xla_handler();

}  // namespace poolgrad
