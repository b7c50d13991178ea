// The kernels behind XLA's foreign-function interface.
#pragma once

#include <nanobind/nanobind.h>

namespace poolgrad {

// The handler as a capsule, for jax.ffi.register_ffi_target; None where this was built without
// XLA's headers.
nanobind::object xla_handler();

}  // namespace poolgrad
