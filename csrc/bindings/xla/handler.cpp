// Calls the kernels for XLA. The attributes of a call in a compiled program are typed; they are
// read and checked, and the plan is built, once for each program.
#include <nanobind/nanobind.h>

#ifndef POOLGRAD_XLA

namespace poolgrad {
nanobind::object xla_handler() { return nanobind::none(); }
}  // namespace poolgrad

#else

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "bindings/plan.hpp"
#include "xla/ffi/api/ffi.h"

namespace poolgrad {
namespace {

namespace ffi = xla::ffi;

// Requests huge pages for a result that has no pages yet, to save page faults.
void prefer_huge_pages([[maybe_unused]] const Array& result) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  const auto begin = reinterpret_cast<std::uintptr_t>(result.data);
  const auto size = static_cast<std::uintptr_t>(result.extent());
  const std::uintptr_t last = (begin + size) / page * page;
  unsigned char resident = 0;
  if (begin + page <= last && mincore(reinterpret_cast<void*>(last - page), 1, &resident) == 0 &&
      !resident) {
    advise_huge_pages(result.data, size);
  }
#endif
}

constexpr i64 kNone = -1;  // the number of an array that is not passed

// The arrays that XLA passes to a call: operands, then results. Number k is operand k, and number
// -2 - k is result k.
struct XlaArrays {
  std::vector<Array> all;
  std::size_t operands;

  const Array& find(i64 number) const {
    const std::size_t count = number >= 0 ? operands : all.size() - operands;
    const auto index = static_cast<std::uint64_t>(number >= 0 ? number : -2 - number);
    require(number != kNone && index < count, "no such array");
    return all[number >= 0 ? index : operands + index];
  }

  template <bool Written>
  ArrayReference<Written> reference(i64 number) const {
    if (number == kNone) return {};
    const Array& array = find(number);
    require((number < 0) == Written, Written ? "an operand is written" : "a result is read");
    return ArrayReference<Written>(array);
  }

  // Reads a number of 64 bits in two halves, the lower one first.
  std::uint64_t seed(i64 number) const {
    const Input halves = reference<false>(number);
    const bool fits = halves && halves->rank == 1 && halves->shape[0] == 2 && halves->itemsize == 4;
    require(fits, "a seed must have two halves");
    std::uint32_t values[2];
    std::memcpy(values, halves->data, sizeof values);
    return values[0] | std::uint64_t{values[1]} << 32;
  }
};

// A C-contiguous array that XLA owns.
Array array_of(const ffi::AnyBuffer& buffer) {
  Array array;
  array.data = static_cast<char*>(buffer.untyped_data());
  array.itemsize = static_cast<i64>(ffi::ByteWidth(buffer.element_type()));
  for (i64 size : buffer.dimensions()) array.add_axis(size, 0);
  i64 step = 1;
  for (int a = array.rank; a-- > 0; step *= array.shape[a]) array.strides[a] = step;
  return array;
}

// A stored program may allow XLA to place a result in the memory of an operand.
void require_disjoint(const XlaArrays& arrays) {
  for (std::size_t r = arrays.operands; r < arrays.all.size(); ++r) {
    const Array& result = arrays.all[r];
    for (const Array& other : arrays.all) {
      const bool overlap =
          result.data < other.data + other.extent() && other.data < result.data + result.extent();
      require(&result == &other || !overlap, "a result overlaps another array");
    }
  }
}

// A call of a kernel in a compiled program: its attributes and its plan. XLA keeps one for each
// call of a program, from the instantiate stage on. The first execution builds the plan, because
// sizes may be unknown until a program is compiled (jax.export.symbolic_shape) and the instantiate
// stage has no arrays.
struct KernelCall {
  static ffi::TypeId id;

  std::vector<i64> arrays;    // array arguments in order, see XlaArrays
  std::vector<i64> integers;  // bool and integer arguments in order
  i64 input;                  // the array that has the shape of the input
  i64 in_dtype, out_dtype, route_bits, inner_axis;
  std::vector<i64> axes;
  std::function<void(const KernelCall&, const XlaArrays&, int threads)> run;

  const BoundPlan& plan(const XlaArrays& xla_arrays) const {
    std::call_once(planned_, [&] {
      require(input != kNone, "a call lacks an array of the input's shape");
      const Array& like = xla_arrays.find(input);
      const Shape shape(like.shape, static_cast<std::size_t>(like.rank));
      plan_.emplace(axes, shape, inner_axis, in_dtype, out_dtype, route_bits);
    });
    return *plan_;
  }

 private:
  mutable std::once_flag planned_;
  mutable std::optional<BoundPlan> plan_;
};
ffi::TypeId KernelCall::id = {};

// Checks the number of arguments of a call and sets KernelCall::run. The last parameter of a kernel
// is the number of threads.
template <class... Parameters>
void bind_kernel(void (BoundPlan::*kernel)(Parameters...) const, KernelCall& call) {
  constexpr std::size_t arrays =
      (std::size_t{std::is_class_v<Parameters> || std::is_same_v<Parameters, std::uint64_t>} + ...);
  constexpr std::size_t integers = sizeof...(Parameters) - arrays - 1;
  require(call.arrays.size() == arrays, "a call has another number of arrays");
  require(call.integers.size() == integers, "a call has another number of integers");
  call.run = [kernel](const KernelCall& self, const XlaArrays& xla_arrays, int threads) {
    const i64 *array = self.arrays.data(), *integer = self.integers.data();
    const auto next = [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_same_v<T, Input>) return xla_arrays.reference<false>(*array++);
      else if constexpr (std::is_same_v<T, Output>) return xla_arrays.reference<true>(*array++);
      else if constexpr (std::is_same_v<T, std::uint64_t>) return xla_arrays.seed(*array++);
      else if constexpr (std::is_same_v<T, int>) return threads;
      else if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<T>(static_cast<u32>(*integer++));
      else return static_cast<T>(*integer++);
    };
    // Braces evaluate from left to right.
    const std::tuple<const BoundPlan&, Parameters...> arguments{
        self.plan(xla_arrays), next(std::type_identity<Parameters>{})...};
    std::apply(kernel, arguments);
  };
}

template <class T>
T attribute(const ffi::Dictionary& attributes, std::string_view name) {
  const ffi::ErrorOr<T> found = attributes.get<T>(name);
  if (found.has_error()) throw std::invalid_argument(found.error().message());
  return *found;
}

ffi::ErrorOr<std::unique_ptr<KernelCall>> instantiate(ffi::Dictionary attributes) {
  const auto integer = [&](std::string_view name) { return attribute<i64>(attributes, name); };
  const auto integers = [&](std::string_view name) {
    const auto found = attribute<ffi::Span<const i64>>(attributes, name);
    return std::vector<i64>(found.begin(), found.end());
  };
  try {
    auto call = std::make_unique<KernelCall>();
    call->arrays = integers("arrays");
    call->integers = integers("integers");
    call->input = integer("input");
    call->in_dtype = integer("in_dtype");
    call->out_dtype = integer("out_dtype");
    call->route_bits = integer("route_bits");
    call->inner_axis = integer("inner_axis");
    call->axes = integers("axes");
    const auto kernel = attribute<std::string_view>(attributes, "kernel");
    BoundPlan::each_kernel([&](const char* name, auto method) {
      if (name == kernel) bind_kernel(method, *call);
    });
    if (!call->run) throw std::invalid_argument("no such kernel: " + std::string(kernel));
    return call;
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(error.what()));
  }
}

ffi::Error execute(const KernelCall* call, ffi::ThreadPool pool, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  try {
    XlaArrays arrays{{}, args.size()};
    for (std::size_t k = 0; k < args.size(); ++k) {
      arrays.all.push_back(array_of(args.get<ffi::AnyBuffer>(k).value()));
    }
    for (std::size_t k = 0; k < rets.size(); ++k) {
      arrays.all.push_back(array_of(*rets.get<ffi::AnyBuffer>(k).value()));
      prefer_huge_pages(arrays.all.back());
    }
    require_disjoint(arrays);
    // XLA's threads flush subnormal numbers to zero, which would change the maximum of such
    // numbers.
    const FloatingPointEnvironment environment(FE_DFL_ENV);
    const OwnThreads own_threads;
    call->run(*call, arrays, static_cast<int>(pool.num_threads()));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::InvalidArgument(error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(instantiate_handler, instantiate, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(execute_handler, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<KernelCall>>()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .RemainingRets());

// Registers the type of the state with XLA, when XLA first calls a handler, which it does when the
// handler is registered. JAX's own jax.ffi.register_ffi_type is not used: before its backend
// starts, JAX registers handlers before types, which XLA refuses.
XLA_FFI_Error* register_state_type(const XLA_FFI_Api* api) {
  static std::mutex mutex;
  static bool registered = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (registered) return nullptr;
  XLA_FFI_Error* error = ffi::Ffi::RegisterTypeId(api, "poolgrad.KernelCall", &KernelCall::id,
                                                  ffi::MakeTypeInfo<KernelCall>());
  registered = !error;
  return error;
}

template <XLA_FFI_Handler* handler>
nanobind::capsule capsule_of() {
  XLA_FFI_Handler* const with_state_type = [](XLA_FFI_CallFrame* frame) {
    XLA_FFI_Error* error = register_state_type(frame->api);
    return error ? error : handler(frame);
  };
  return nanobind::capsule(reinterpret_cast<void*>(with_state_type));
}

}  // namespace

nanobind::object xla_handler() {
  nanobind::dict stages;
  stages["instantiate"] = capsule_of<instantiate_handler>();
  stages["execute"] = capsule_of<execute_handler>();
  return stages;
}

}  // namespace poolgrad

#endif
