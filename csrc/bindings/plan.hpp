// Calls the kernels of a plan for Python and XLA. src/poolgrad validates arguments; the checks here
// guard memory.
#pragma once

#include "base/buffer_cache.hpp"
#include "base/out_of_memory.hpp"
#include "bindings/layout.hpp"
#include "dispatch.hpp"

namespace poolgrad {

// A layout with a method for each kernel. Routes may be packed: a kernel reads and writes them in a
// buffer of one byte for each route.
class BoundPlan : public PlanLayout {
 public:
  // route_bits: bits of a packed route, 2 or 4; 0: routes are not packed
  BoundPlan(Shape axes, Shape shape, i64 inner_axis, i64 in, i64 out, i64 route_bits)
      : PlanLayout(axes, shape, inner_axis, in, out) {
    if (route_bits == 0) return;
    require((route_bits == 2 || route_bits == 4) && plan_.taps <= 1 << route_bits,
            "routes do not fit so few bits");
    packed_ = {plan_.outer * plan_.axis[0].out * plan_.axis[1].out, plan_.axis[2].out, plan_.inner,
               static_cast<int>(route_bits), plan_.taps < 1 << route_bits};
  }

  // which: the number of a value of Select or, in nonlinear(), of NonlinearOp
  void select(i64 which, Input x, Output y, Output routes, bool zero_ties, Input samples,
              int threads) const {
    require_one_dtype();
    with_routes(routes, threads, [&](const Planes<Dense>& routing) {
      run(kernels().select->forward, tables_of(samples), threads, selection(which),
          per_input(x, in_), per_output(y, out_), routing, zero_ties);
    });
  }

  void draw(Input x, Output y, Output routes, std::uint64_t seed, int threads) const {
    require_one_dtype();
    std::vector<i64> strides(out_shape_.size());  // of the outputs in logical order
    i64 step = 1;
    for (std::size_t a = strides.size(); a-- > 0; step *= out_shape_[a]) strides[a] = step;
    const View order = view_of(strides.data(), nullptr, out_);
    with_routes(routes, threads, [&](const Planes<Dense>& routing) {
      const bool is_finite = run(kernels().select->draw, no_tables(), threads, per_input(x, in_),
                                 per_output(y, out_), routing, order, seed);
      require(is_finite,
              "x must be finite: probabilities are proportional to it, got NaN or an infinity");
    });
  }

  template <bool backward>
  void along_routes(Input from, Input routes, Output to, Input samples, int threads) const {
    require_one_dtype();
    const auto kernel = backward ? kernels().route->backward : kernels().route->jvp;
    with_routes(routes, threads, [&](const View& routing) {
      run(kernel, tables_of(samples), threads, source<backward>(from), routing,
          target<backward>(to));
    });
  }

  void route_indices(Input routes, Output indices, Input samples, int threads) const {
    const Dense to = per_output(indices, Dtype::int64);
    const Planes<i64*> positions{reinterpret_cast<i64*>(to.data), plan_.out_plane()};
    with_routes(routes, threads, [&](const View& routing) {
      run(kernels().route->indices, tables_of(samples), threads, routing, positions);
    });
  }

  // Unpacks routes to one byte each.
  void unpack_routes(Input packed, Output routes, int threads) const {
    require(packed_.bits != 0, "routes are not packed");
    unpack(packed, per_output(routes, Dtype::uint8).first.data, threads);
  }

  void split_winners(i64 which, Input x, Input y, Output winners, Input samples,
                     int threads) const {
    require_one_dtype();
    run(kernels().select->split_winners, tables_of(samples), threads, selection(which),
        per_input(x, in_), per_output(y, out_), winner_bits(winners));
  }

  template <bool backward>
  void along_winners(Input from, Input winners, Output to, Input samples, int threads) const {
    require_one_dtype();
    const auto kernel = backward ? kernels().route->split_backward : kernels().route->split_jvp;
    run(kernel, tables_of(samples), threads, source<backward>(from), winner_bits(winners),
        target<backward>(to));
  }

  template <bool backward>
  void unpool(Input from, Input indices, Output to, int threads) const {
    require_one_dtype();
    const auto kernel = backward ? kernels().route->unpool_backward : kernels().route->unpool;
    i64 invalid = 0;
    const bool valid = run(kernel, no_tables(), threads, source<backward>(from),
                           per_input(indices, Dtype::int64), target<backward>(to), &invalid);
    if (valid) return;
    const i64 plane = plan_.axis[0].out * plan_.axis[1].out * plan_.axis[2].out;
    throw std::invalid_argument("indices must be from 0 to " + std::to_string(plane - 1) +
                                ", positions in a plane of the output, got " +
                                std::to_string(invalid));
  }

  template <bool backward>
  void average(Input from, Output to, bool count_padding, i64 divisor, int threads) const {
    const auto kernel =
        backward ? kernels().weighted->average_backward : kernels().weighted->average;
    run(kernel, no_tables(), threads, source<backward>(from), target<backward>(to), count_padding,
        static_cast<double>(divisor));
  }

  // Rounds averages to integers of the dtype of x. `scale` etc.: see Quantization.
  void average_quantized(Input x, Output y, bool count_padding, i64 divisor, float scale,
                         float zero_point, float added_before, float added_after,
                         int threads) const {
    require_one_dtype();
    View from = per_input(x, in_);
    from.zero_point = zero_point;
    Planes<Dense> to = per_output(y, out_);
    to.first.quantization = {scale, added_before, added_after};
    run(kernels().weighted->average, no_tables(), threads, from, to, count_padding,
        static_cast<double>(divisor));
  }

  void mixed(Input x, Input alpha, i64 count, bool count_padding, Output y, Output routes,
             Output sensitivity, int threads) const {
    require_one_dtype();
    run(kernels().weighted->mixed, no_tables(), threads, per_input(x, in_), parameter(alpha, count),
        count_padding, per_output(y, out_), per_output_if_given(routes, route_dtype()),
        sums_if_given(sensitivity));
  }

  void mixed_backward(Input gy, Input alpha, i64 count, bool count_padding, Input routes, Output gx,
                      int threads) const {
    require_one_dtype();
    run(kernels().weighted->mixed_backward, no_tables(), threads, per_output(gy, out_),
        per_output(routes, route_dtype()), parameter(alpha, count), count_padding,
        per_input(gx, in_));
  }

  // a, b, c: the residual
  void nonlinear(i64 which, Input x, Input theta, i64 count, Output y, Output a, Output b, Output c,
                 Output sensitivity, int threads) const {
    require_one_dtype();
    void* const residuals[kMaxResiduals] = {sums_if_given(a), sums_if_given(b), sums_if_given(c)};
    run(kernels().nonlinear->forward, no_tables(), threads, nonlinear_op(which), per_input(x, in_),
        parameter(theta, count), per_output(y, out_), residuals, sums_if_given(sensitivity));
  }

  void nonlinear_backward(i64 which, Input gy, Input x, Input theta, i64 count, Input a, Input b,
                          Input c, Output gx, int threads) const {
    require_one_dtype();
    const auto op = nonlinear_op(which);
    const bool has_three = op == NonlinearOp::soft || op == NonlinearOp::expected;
    require(bool(c) == has_three, "another number of residuals is needed");
    const View residuals[kMaxResiduals] = {per_output(a, sum_dtype()), per_output(b, sum_dtype()),
                                           has_three ? per_output(c, sum_dtype()) : View{}};
    run(kernels().nonlinear->backward, no_tables(), threads, op, per_output(gy, out_),
        per_input(x, in_), parameter(theta, count), residuals, per_input(gx, in_));
  }

  // Calls f(name, method) for each kernel.
  template <class F>
  static void each_kernel(F&& f) {
    f("select", &BoundPlan::select);
    f("draw", &BoundPlan::draw);
    f("route_backward", &BoundPlan::along_routes<true>);
    f("route_jvp", &BoundPlan::along_routes<false>);
    f("route_indices", &BoundPlan::route_indices);
    f("unpack_routes", &BoundPlan::unpack_routes);
    f("split_winners", &BoundPlan::split_winners);
    f("split_backward", &BoundPlan::along_winners<true>);
    f("split_jvp", &BoundPlan::along_winners<false>);
    f("unpool", &BoundPlan::unpool<false>);
    f("unpool_backward", &BoundPlan::unpool<true>);
    f("average", &BoundPlan::average<false>);
    f("average_quantized", &BoundPlan::average_quantized);
    f("average_backward", &BoundPlan::average<true>);
    f("mixed", &BoundPlan::mixed);
    f("mixed_backward", &BoundPlan::mixed_backward);
    f("nonlinear", &BoundPlan::nonlinear);
    f("nonlinear_backward", &BoundPlan::nonlinear_backward);
  }

  // The smallest dtype of a route: a tap index, or kNowhere.
  Dtype route_dtype() const {
    if (plan_.taps <= 255) return Dtype::uint8;
    return plan_.taps <= 65535 ? Dtype::uint16 : Dtype::uint32;
  }

 private:
  static const Kernels& kernels() { return chosen_kernels(); }

  static Select selection(i64 n) { return checked_enum(n, Select::median, "no such selection"); }
  static NonlinearOp nonlinear_op(i64 n) {
    return checked_enum(n, NonlinearOp::expected, "no such nonlinear reduction");
  }

  template <bool Written>
  Planes<std::uint8_t*> winner_bits(ArrayReference<Written> array) const {
    const i64 plane = plan_.out_plane() * plan_.winner_bytes();
    return {reinterpret_cast<std::uint8_t*>(array->dense(plan_.outer * plane, 1)), plane};
  }

  // One number for each output, in the type of the arithmetic. Null if there is no array.
  void* sums_if_given(Output array) const {
    return per_output_if_given(array, sum_dtype()).first.data;
  }

  Parameter parameter(Input array, i64 count) const {
    require(count >= (outputs() > 0) && count <= kMaxElements, "a parameter is empty");
    return {array->dense(count, size_of(sum_dtype())), count};
  }

  // Calls kernel(routes) with the routes that it writes, and packs them.
  template <class F>
  void with_routes(Output routes, int threads, F&& kernel) const {
    if (packed_.bits == 0 || !routes) return kernel(per_output_if_given(routes, route_dtype()));
    auto* const packed = reinterpret_cast<std::uint8_t*>(routes->dense(packed_.size(), 1));
    const CachedBlock block = route_block();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block.data());
    kernel(Planes<Dense>{{block.data(), Dtype::uint8}, plan_.out_plane()});
    if (packed_.size() > 0) kernels().route->pack(packed_, bytes, packed, workers(threads));
  }

  // Calls kernel(routes) with the routes that it reads, unpacked.
  template <class F>
  void with_routes(Input routes, int threads, F&& kernel) const {
    if (packed_.bits == 0) return kernel(per_output(routes, route_dtype()));
    const CachedBlock block = route_block();
    unpack(routes, block.data(), threads);
    View view;
    view.data = block.data();
    view.dtype = Dtype::uint8;
    view.inner = plan_.inner_axis >= 0;
    view.width = plan_.inner;
    view.height = plan_.out_row();
    view.depth = plan_.axis[1].out * view.height;
    view.outer_axes = 1;
    view.outer_size[0] = plan_.outer;
    view.outer_stride[0] = plan_.out_plane();
    kernel(view);
  }

  void unpack(Input packed, char* to, int threads) const {
    const auto* from = reinterpret_cast<const std::uint8_t*>(packed->dense(packed_.size(), 1));
    auto* const bytes = reinterpret_cast<std::uint8_t*>(to);
    if (packed_.size() > 0) kernels().route->unpack(packed_, from, bytes, workers(threads));
  }

  // Memory for one byte for each output.
  CachedBlock route_block() const {
    const auto bytes = static_cast<std::size_t>(larger(1, outputs()));
    try {
      return CachedBlock(bytes);
    } catch (const OutOfMemory&) {  // as with_memory() of src/poolgrad/interface.py
      const std::string purpose = " for an array of shape " + described(out_shape_) +
                                  " and dtype uint8, which follows from x of shape " +
                                  described(in_shape_) + " and the windows";
      throw OutOfMemory(bytes, purpose.c_str());
    }
  }
  static std::string described(Shape shape) {
    std::string text;
    for (i64 size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "(" + text + (shape.size() == 1 ? ",)" : ")");
  }

  PackedRows packed_{};
};

}  // namespace poolgrad
