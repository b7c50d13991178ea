// Converts routes between the form that Python stores (packed or not) and the form of the kernels.
#pragma once

#include <optional>

#include "base/buffer_cache.hpp"
#include "base/out_of_memory.hpp"
#include "bindings/python/layout.hpp"

namespace poolgrad {
namespace {

// A layout whose routes may be packed. A kernel reads and writes packed routes in a buffer of one
// byte for each route.
class RoutedLayout : public PlanLayout {
 public:
  // route_bits: bits of a packed route, 2 or 4; 0: routes are not packed
  RoutedLayout(const std::vector<std::vector<i64>>& axes, const std::vector<i64>& shape,
               const std::vector<int>& pooled, int inner_axis, const std::string& in,
               const std::string& out, int route_bits)
      : PlanLayout(axes, shape, pooled, inner_axis, in, out) {
    const bool fits = (route_bits == 2 || route_bits == 4) && plan_.taps <= 1 << route_bits;
    if (route_bits != 0 && !fits) throw nb::value_error("routes do not fit so few bits");
    if (route_bits == 0) return;
    const i64 rows = plan_.outer * plan_.axis[0].out * plan_.axis[1].out;
    const bool nowhere = plan_.taps < i64{1} << route_bits;
    packed_ = {rows, plan_.axis[2].out, plan_.inner, route_bits, nowhere};
    i64 step = 1;
    dense_strides_.assign(shape.size(), 0);
    const auto next = [&](int axis, i64 size) {
      if (axis >= 0 && axis < static_cast<int>(shape.size()))
        dense_strides_[static_cast<std::size_t>(axis)] = step;
      step *= size;
    };
    next(plan_.inner_axis, plan_.inner);
    for (int a = 2; a >= 0; --a) next(plan_.pooled_axes[a], plan_.axis[a].out);
    for (std::size_t k = outer_axes_.size(); k-- > 0;) next(outer_axes_[k], outer_shape_[k]);
  }

  // Unpacks routes to one byte each.
  void unpack_routes(ArraySource packed, ArraySource routes, int threads) const {
    if (packed_.bits == 0) throw nb::value_error("routes are not packed");
    const Array from(packed, Use::read, 1), to(routes, Use::write, 1);
    const Dense target = dense(to, Dtype::uint8, outputs());
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      unpack(from, reinterpret_cast<std::uint8_t*>(target.data), planes.work.threads);
    });
  }

 protected:
  // The routes of a call.
  class RouteArgument {
   public:
    RouteArgument(const RoutedLayout& layout, ArraySource source, Use use)
        : layout_(layout), array_(source, use, layout.packed_.bits ? 1 : layout.route_size()) {
      if (layout.packed_.bits && array_.data()) {
        const auto bytes = static_cast<std::size_t>(larger(1, layout.outputs()));
        try {
          unpacked_.emplace(bytes);
        } catch (const OutOfMemory&) {
          throw OutOfMemory(bytes, layout.purpose_of_outputs("uint8").c_str());
        }
      }
    }

    Dense to_write() const {
      if (unpacked_) return {static_cast<char*>(unpacked_->data()), Dtype::uint8};
      return dense(array_, layout_.route_dtype(), layout_.outputs());
    }
    // Packs the routes that a kernel wrote.
    void pack(int threads) const {
      if (!unpacked_) return;
      auto* to = reinterpret_cast<std::uint8_t*>(array_.dense(layout_.packed_.size()));
      const auto* from = static_cast<const std::uint8_t*>(unpacked_->data());
      layout_.run(kNoTables, threads, [&](const PlaneSelection& planes) {
        kernels().route->pack(layout_.packed_, from, to, planes.work.threads);
      });
    }

    View to_read(int threads) const {
      if (!unpacked_) return layout_.outputs_of(array_, layout_.route_dtype());
      auto* to = static_cast<std::uint8_t*>(unpacked_->data());
      layout_.run(kNoTables, threads, [&](const PlaneSelection& planes) {
        layout_.unpack(array_, to, planes.work.threads);
      });
      return layout_.view_of(layout_.dense_strides_.data(), static_cast<char*>(unpacked_->data()),
                             Dtype::uint8);
    }

   private:
    const RoutedLayout& layout_;
    const Array array_;
    std::optional<CachedBlock> unpacked_;
  };

 private:
  void unpack(const Array& from, std::uint8_t* to, int threads) const {
    const auto* packed = reinterpret_cast<const std::uint8_t*>(from.dense(packed_.size()));
    kernels().route->unpack(packed_, packed, to, threads);
  }

  PackedRows packed_{};
  std::vector<i64> dense_strides_;  // of the kernels' routes
};

}  // namespace
}  // namespace poolgrad
