// Routes, as Python keeps them and as the kernels take them.
#pragma once

#include <optional>

#include "base/buffer_cache.hpp"
#include "python/layout.hpp"

namespace poolgrad {
namespace {

// A layout whose routes may be packed: then the kernels see them in memory of their own, a byte
// each, for as long as one of them runs.
class RoutedLayout : public BoundLayout {
 public:
  // route_bits: of a packed route, 2 or 4; 0: they are whole bytes
  RoutedLayout(const std::vector<std::vector<i64>>& axes, const std::vector<i64>& shape,
               const std::vector<int>& pooled, int inner_axis, const std::string& in,
               const std::string& out, int route_bits)
      : BoundLayout(axes, shape, pooled, inner_axis, in, out) {
    const bool fits = (route_bits == 2 || route_bits == 4) && plan_.places <= 1 << route_bits;
    if (route_bits != 0 && !fits) throw nb::value_error("routes do not fit so few bits");
    if (route_bits == 0) return;
    const i64 rows = plan_.outer * plan_.axis[0].out * plan_.axis[1].out;
    const bool nowhere = plan_.places < i64{1} << route_bits;
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
    for (std::size_t k = plan_.outer_axes.size(); k-- > 0;) {
      next(plan_.outer_axes[k], plan_.outer_shape[k]);
    }
  }

  // The routes of packed ones, a byte each.
  void unpack_routes(Source packed, Source routes, int threads) const {
    if (packed_.bits == 0) throw nb::value_error("routes are not packed");
    const Array from(packed, Use::read, 1), to(routes, Use::write, 1);
    const Dense target = dense(to, Dtype::uint8, outputs());
    run(threads, [&](const Work& work) {
      unpack(from, reinterpret_cast<std::uint8_t*>(target.data), work.threads);
    });
  }

 protected:
  // One argument: what the kernels write or read in place of it.
  class Routes {
   public:
    Routes(const RoutedLayout& layout, Source source, Use use)
        : layout_(layout), given_(source, use, layout.packed_.bits ? 1 : layout.route_size()) {
      if (layout.packed_.bits && given_.data()) {
        wide_.emplace(static_cast<std::size_t>(larger(1, layout.outputs())));
      }
    }

    Dense to_write() const {
      if (wide_) return {static_cast<char*>(wide_->data()), Dtype::uint8};
      return dense(given_, layout_.route_dtype(), layout_.outputs());
    }
    // What was written, packed.
    void written(int threads) const {
      if (!wide_) return;
      auto* to = reinterpret_cast<std::uint8_t*>(given_.dense(layout_.packed_.size()));
      layout_.run(threads, [&](const Work& work) {
        kernels().route->pack(layout_.packed_, static_cast<const std::uint8_t*>(wide_->data()), to,
                              work.threads);
      });
    }

    View to_read(int threads) const {
      if (!wide_) return layout_.outputs_of(given_, layout_.route_dtype());
      auto* wide = static_cast<std::uint8_t*>(wide_->data());
      layout_.run(threads, [&](const Work& work) { layout_.unpack(given_, wide, work.threads); });
      return layout_.view_of(layout_.dense_strides_.data(), static_cast<char*>(wide_->data()),
                             Dtype::uint8);
    }

   private:
    const RoutedLayout& layout_;
    const Array given_;
    std::optional<Memory> wide_;
  };

 private:
  void unpack(const Array& from, std::uint8_t* to, int threads) const {
    const auto* here = reinterpret_cast<const std::uint8_t*>(from.dense(packed_.size()));
    kernels().route->unpack(packed_, here, to, threads);
  }

  PackedRows packed_{};
  std::vector<i64> dense_strides_;  // of outputs as the kernels write them
};

}  // namespace
}  // namespace poolgrad
