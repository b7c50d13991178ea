// Calls the kernels for XLA. The attributes of a call in a compiled program are typed; they are
// read and checked, and the plan is built, once for each program.
#include <nanobind/nanobind.h>

#ifndef POOLGRAD_XLA

namespace poolgrad {
nanobind::object xla_handler() { return nanobind::none(); }
}  // namespace poolgrad

#else

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings/python/plan.hpp"
#include "xla/ffi/api/ffi.h"

namespace poolgrad {
namespace {

namespace ffi = xla::ffi;

// Requests huge pages for a result that has no pages yet, to save page faults.
void prefer_huge_pages(const XlaArray& result) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  const auto begin = reinterpret_cast<std::uintptr_t>(result.data);
  const auto end = begin + static_cast<std::uintptr_t>(result.bytes());
  const std::uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  unsigned char resident = 0;
  if (first < last && mincore(reinterpret_cast<void*>(last - page), 1, &resident) == 0 &&
      !resident) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#else
  static_cast<void>(result);
#endif
}

// The arrays that XLA passes to a call.
struct XlaArrays {
  std::vector<XlaArray> operands, results;

  // number: k: operand k; -1: none; -2 - k: result k
  const XlaArray* find(i64 number) const {
    if (number == -1) return nullptr;
    const std::vector<XlaArray>& from = number >= 0 ? operands : results;
    const auto index = static_cast<std::uint64_t>(number >= 0 ? number : -2 - number);
    if (index >= from.size()) {
      throw std::invalid_argument("no such array: " + std::to_string(number));
    }
    return &from[index];
  }
};

XlaArray xla_array(const ffi::AnyBuffer& buffer, bool is_result) {
  const auto shape = buffer.dimensions();
  return {static_cast<char*>(buffer.untyped_data()),
          static_cast<i64>(ffi::ByteWidth(buffer.element_type())), shape.begin(),
          static_cast<int>(shape.size()), is_result};
}

// A stored program may allow XLA to place a result in the memory of an operand.
void require_disjoint(const XlaArrays& arrays) {
  const auto overlap = [](const XlaArray& a, const XlaArray& b) {
    return &a != &b && a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
  };
  for (const XlaArray& result : arrays.results) {
    for (const std::vector<XlaArray>* others : {&arrays.results, &arrays.operands}) {
      for (const XlaArray& other : *others) {
        if (overlap(result, other)) throw std::invalid_argument("a result overlaps another array");
      }
    }
  }
}

using Integers = ffi::Span<const i64>;

std::vector<i64> vector_of(Integers integers) { return {integers.begin(), integers.end()}; }

// A call of a kernel in a compiled program: its attributes and its plan. XLA keeps one for each
// call of a program, from the instantiate stage on. The first execution builds the plan, because
// sizes may be unknown until a program is compiled (jax.export.symbolic_shape) and the instantiate
// stage has no arrays.
class KernelCall {
 public:
  static ffi::TypeId id;

  std::string option;         // the selection or the weights, of kernels that compute several
  std::vector<i64> arrays;    // array arguments in order, see XlaArrays::find
  std::vector<i64> integers;  // bool and integer arguments in order
  std::size_t list = 0;       // how many of the arrays form the argument that is a list
  void (*execute)(const KernelCall&, const BoundPlan&, const XlaArrays&, int threads) = nullptr;

  // input: the array that has the shape of the input; axes: for each pooled axis its position and
  // the numbers of PlanLayout
  KernelCall(i64 input, std::string_view in_dtype, std::string_view out_dtype, i64 route_bits,
             i64 inner_axis, Integers axes)
      : input_(input),
        in_dtype_(in_dtype),
        out_dtype_(out_dtype),
        route_bits_(position(route_bits)),
        inner_axis_(position(inner_axis)) {
    constexpr std::size_t step = 1 + BoundPlan::kAxisNumbers;
    if (axes.size() == 0 || axes.size() > 3 * step || axes.size() % step) {
      throw std::invalid_argument("1 to 3 axes are pooled, each with 13 numbers");
    }
    for (const i64* axis = axes.begin(); axis != axes.end(); axis += step) {
      pooled_.push_back(position(axis[0]));
      axes_.emplace_back(axis + 1, axis + step);
    }
  }

  const BoundPlan& plan(const XlaArrays& xla_arrays) const {
    std::call_once(planned_, [&] {
      const XlaArray* input = xla_arrays.find(input_);
      if (!input) throw std::invalid_argument("a call lacks an array of the input's shape");
      const std::vector<i64> shape(input->shape, input->shape + input->rank);
      plan_.emplace(axes_, shape, pooled_, inner_axis_, in_dtype_, out_dtype_, route_bits_);
      plan_->use_without_gil();
    });
    return *plan_;
  }

 private:
  // Converts a position to int. One that is out of range stays so: BoundPlan rejects it.
  static int position(i64 number) {
    return number < -1 || number > kMaxAxes ? kMaxAxes : static_cast<int>(number);
  }

  i64 input_;
  std::string in_dtype_, out_dtype_;
  int route_bits_, inner_axis_;
  std::vector<int> pooled_;
  std::vector<std::vector<i64>> axes_;
  mutable std::once_flag planned_;
  mutable std::optional<BoundPlan> plan_;
};
ffi::TypeId KernelCall::id = {};

// Counts the arguments of each form that a kernel takes.
template <class... Parameters>
struct Arity {
  template <class T>
  static constexpr std::size_t count =
      (std::size_t{std::is_same_v<std::decay_t<Parameters>, T>} + ...);
  static constexpr std::size_t arrays = count<ArraySource> + count<std::uint64_t>;
  static constexpr std::size_t integers = count<bool> + count<i64>;
  static constexpr bool has_option = count<const char*> > 0;
  static constexpr bool has_list = count<std::vector<ArraySource>> > 0;
};

// Reads the arguments of one execution in order.
class ArgumentReader {
 public:
  ArgumentReader(const KernelCall& call, const XlaArrays& arrays, int threads)
      : call_(call), arrays_(arrays), threads_(threads) {}

  template <class T>
  T next() {
    if constexpr (std::is_same_v<T, ArraySource>) {
      return next_array();
    } else if constexpr (std::is_same_v<T, std::vector<ArraySource>>) {
      std::vector<ArraySource> list(call_.list);
      for (ArraySource& source : list) source = next_array();
      return list;
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return next_seed();
    } else if constexpr (std::is_same_v<T, const char*>) {
      return call_.option.c_str();
    } else if constexpr (std::is_same_v<T, int>) {
      return threads_;
    } else {
      return static_cast<T>(call_.integers[integer_++]);
    }
  }

 private:
  ArraySource next_array() {
    const XlaArray* array = arrays_.find(call_.arrays[array_++]);
    return array ? ArraySource(*array) : ArraySource();
  }

  // A number of 64 bits in two halves, the lower one first.
  std::uint64_t next_seed() {
    const XlaArray* array = next_array().xla();
    if (!array || array->rank != 1 || array->shape[0] != 2 || array->itemsize != 4) {
      throw std::invalid_argument("a seed must have two halves");
    }
    std::uint32_t halves[2];
    std::memcpy(halves, array->data, sizeof halves);
    return halves[0] | std::uint64_t{halves[1]} << 32;
  }

  const KernelCall& call_;
  const XlaArrays& arrays_;
  int threads_;
  std::size_t array_ = 0, integer_ = 0;
};

// Checks the number of arguments of a call and sets KernelCall::execute.
using Bind = void (*)(KernelCall&);

template <auto kernel, class... Parameters>
void bind_kernel(void (BoundPlan::*)(Parameters...) const, KernelCall& call) {
  using Needed = Arity<Parameters...>;
  const auto require = [](bool valid, const char* message) {
    if (!valid) throw std::invalid_argument(message);
  };
  require(call.list <= (Needed::has_list ? kMaxResiduals : 0), "a call has too long a list");
  require(call.arrays.size() == Needed::arrays + call.list, "a call has another number of arrays");
  require(call.integers.size() == Needed::integers, "a call has another number of integers");
  require(call.option.empty() != Needed::has_option, "a call has another number of options");
  call.execute = [](const KernelCall& self, const BoundPlan& plan, const XlaArrays& arrays,
                    int threads) {
    ArgumentReader reader(self, arrays, threads);
    // Braces evaluate from left to right.
    const std::tuple<std::decay_t<Parameters>...> arguments{
        reader.next<std::decay_t<Parameters>>()...};
    std::apply([&](const auto&... each) { (plan.*kernel)(each...); }, arguments);
  };
}
template <auto kernel>
void bind_kernel(KernelCall& call) {
  bind_kernel<kernel>(kernel, call);
}

Bind kernel_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Bind> kKernels[] = {
      {"select", bind_kernel<&BoundPlan::select>},
      {"draw", bind_kernel<&BoundPlan::draw>},
      {"route_backward", bind_kernel<&BoundPlan::route_backward>},
      {"route_jvp", bind_kernel<&BoundPlan::route_jvp>},
      {"split_winners", bind_kernel<&BoundPlan::split_winners>},
      {"split_backward", bind_kernel<&BoundPlan::split_backward>},
      {"split_jvp", bind_kernel<&BoundPlan::split_jvp>},
      {"unpool", bind_kernel<&BoundPlan::unpool>},
      {"unpool_backward", bind_kernel<&BoundPlan::unpool_backward>},
      {"average", bind_kernel<&BoundPlan::average>},
      {"average_backward", bind_kernel<&BoundPlan::average_backward>},
      {"mixed", bind_kernel<&BoundPlan::mixed>},
      {"mixed_backward", bind_kernel<&BoundPlan::mixed_backward>},
      {"nonlinear", bind_kernel<&BoundPlan::nonlinear>},
      {"nonlinear_backward", bind_kernel<&BoundPlan::nonlinear_backward>},
  };
  return value_named(kKernels, name, "kernel");
}

ffi::ErrorOr<std::unique_ptr<KernelCall>> instantiate(std::string_view kernel,
                                                      std::string_view option, Integers arrays,
                                                      Integers integers, i64 list, i64 input,
                                                      std::string_view in_dtype,
                                                      std::string_view out_dtype, i64 route_bits,
                                                      i64 inner_axis, Integers axes) {
  try {
    auto call =
        std::make_unique<KernelCall>(input, in_dtype, out_dtype, route_bits, inner_axis, axes);
    call->option = option;
    call->arrays = vector_of(arrays);
    call->integers = vector_of(integers);
    call->list = static_cast<std::size_t>(list);
    kernel_named(kernel)(*call);
    return call;
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(error.what()));
  }
}

ffi::Error execute(const KernelCall* call, ffi::ThreadPool pool, ffi::RemainingArgs args,
                   ffi::RemainingRets rets) {
  try {
    XlaArrays arrays;
    arrays.operands.reserve(args.size());
    arrays.results.reserve(rets.size());
    for (std::size_t k = 0; k < args.size(); ++k) {
      arrays.operands.push_back(xla_array(args.get<ffi::AnyBuffer>(k).value(), false));
    }
    for (std::size_t k = 0; k < rets.size(); ++k) {
      arrays.results.push_back(xla_array(*rets.get<ffi::AnyBuffer>(k).value(), true));
    }
    require_disjoint(arrays);
    for (const XlaArray& result : arrays.results) prefer_huge_pages(result);
    // XLA's threads flush subnormal numbers to zero, which would change the maximum of such
    // numbers.
    const FloatingPointEnvironment environment(FE_DFL_ENV);
    const OwnThreads own_threads;
    call->execute(*call, call->plan(arrays), arrays, static_cast<int>(pool.num_threads()));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::InvalidArgument(error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(instantiate_handler, instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<std::string_view>("kernel")
                           .Attr<std::string_view>("option")
                           .Attr<Integers>("arrays")
                           .Attr<Integers>("integers")
                           .Attr<i64>("list")
                           .Attr<i64>("input")
                           .Attr<std::string_view>("in_dtype")
                           .Attr<std::string_view>("out_dtype")
                           .Attr<i64>("route_bits")
                           .Attr<i64>("inner_axis")
                           .Attr<Integers>("axes"));
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
XLA_FFI_Error* with_state_type(XLA_FFI_CallFrame* frame) {
  if (XLA_FFI_Error* error = register_state_type(frame->api)) return error;
  return handler(frame);
}

template <XLA_FFI_Handler* handler>
nb::capsule capsule_of() {
  return nb::capsule(reinterpret_cast<void*>(with_state_type<handler>));
}

}  // namespace

nb::object xla_handler() {
  nb::dict stages;
  stages["instantiate"] = capsule_of<instantiate_handler>();
  stages["execute"] = capsule_of<execute_handler>();
  return stages;
}

}  // namespace poolgrad

#endif
