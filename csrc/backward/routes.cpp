// Gradients along routes, tie masks and indices, compiled once per instruction set.
#include "backward/routes.hpp"

#include <atomic>

#include "backward/packed_routes.hpp"
#include "backward/split_ties.hpp"
#include "backward/unpool.hpp"
#include "base/common.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

void backward(const Work& work, const View& gy, const View& routes, Dense gx) {
  const Plan& p = *work.plan;
  Call call = call_of(Task::routes_backward, work, gy);
  call.routes = layout_of(routes, p);
  const Algorithm algorithm = choose(call);
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    if constexpr (!kGeneralOnly) {
      if (algorithm == Algorithm::register_blocked_backward)
        return run_backward<RegisterBlockedBackward<A, true>>(work, gy, &routes, {}, gx);
      if (algorithm == Algorithm::register_blocked_channels_last_backward)
        return run_backward<RegisterBlockedChannelsLastBackward<A>>(work, gy, &routes, {}, gx);
    }
    if (algorithm == Algorithm::gather)
      return run_backward<Gather<A, true>>(work, gy, &routes, {}, gx);
    by_route(routes.dtype, [&](auto r) {
      using Backward = ScatterRoutes<A, decltype(r)>;
      over_inputs(
          work,
          [&](const InputTile& tile, i64 planes, Arena& arena) {
            return Backward(p, tile, planes, has_type<A>(gx), arena);
          },
          [&](Backward& state, i64 first, i64 last, const InputTile&) {
            state.run(gy, routes, gx, first, last);
          },
          false, Backward::kPlanesTogether);
    });
  });
}

void jvp(const Work& work, const View& tangent, const View& routes, Dense y) {
  const Plan& p = *work.plan;
  by_sum(tangent.dtype, [&](auto a) {
    by_route(routes.dtype, [&](auto r) {
      using A = decltype(a);
      using R = decltype(r);
      struct JvpBuffers {
        R* buffer;
        A* row;
      };
      over_outputs(
          work,
          [&](const Tile&, Arena& arena) {
            return JvpBuffers{arena.take<R>(p.out_row()), arena.take<A>(p.out_row())};
          },
          [&](JvpBuffers& state, i64 plane, const Tile& tile) {
            jvp_along_routes<A, R>(p, tile, tangent, plane_of(tangent, plane), routes,
                                   plane_of(routes, plane), state.buffer, state.row, y,
                                   plane * p.out_plane());
          });
    });
  });
}

void indices(const Work& work, const View& routes, i64* to) {
  const Plan& p = *work.plan;
  by_route(routes.dtype, [&](auto r) {
    using R = decltype(r);
    struct IndexState {
      TapOffsets offsets;
      R* buffer;
    };
    over_outputs(
        work,
        [&](const Tile&, Arena& a) {
          return IndexState{TapOffsets(p, p.axis[1].in * p.axis[2].in, p.axis[2].in, 1, a),
                            a.take<R>(p.out_row())};
        },
        [&](IndexState& state, i64 plane, const Tile& tile) {
          state.offsets.fill();
          routes_to_indices<R>(p, tile, routes, plane_of(routes, plane), state.offsets,
                               state.buffer, to + plane * p.out_plane());
        });
  });
}

void split_backward(const Work& work, const View& gy, const std::uint8_t* winners, Dense gx) {
  const Plan& p = *work.plan;
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    struct SplitTiesState {
      TieRows<A> rows;
      TileSums<A> sums;
    };
    over_inputs(
        work,
        [&](const InputTile& tile, Arena& arena) {
          return SplitTiesState{TieRows<A>(p, arena), TileSums<A>(p, tile, has_type<A>(gx), arena)};
        },
        [&](SplitTiesState& state, i64 plane, const InputTile& tile) {
          split_ties_backward<A>(p, tile, gy, plane_of(gy, plane),
                                 winners + plane * p.out_plane() * p.winner_bytes(), state.rows,
                                 state.sums, gx, plane * p.in_plane());
        });
  });
}

void split_jvp(const Work& work, const View& tangent, const std::uint8_t* winners, Dense y) {
  const Plan& p = *work.plan;
  by_sum(tangent.dtype, [&](auto a) {
    using A = decltype(a);
    over_outputs(
        work, [&](const Tile&, Arena& arena) { return TieRows<A>(p, arena); },
        [&](TieRows<A>& rows, i64 plane, const Tile& tile) {
          split_ties_jvp<A>(p, tile, tangent, plane_of(tangent, plane),
                            winners + plane * p.out_plane() * p.winner_bytes(), rows, y,
                            plane * p.out_plane());
        });
  });
}

bool all_indices_inside(const Work& work, const View& positions, i64* invalid) {
  std::atomic<i64> outside{-1};
  std::atomic<bool> all{true};
  parallel_for(work.plan->outer, work.threads, [&](i64 plane) {
    i64 found = -1;
    if (all_inside(*work.plan, positions, plane_of(positions, plane), &found)) return;
    all = false;
    outside = found;
  });
  *invalid = outside;
  return all;
}

template <class F>
void by_size(Dtype dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

bool unpool(const Work& work, const View& x, const View& positions, Dense y, i64* invalid) {
  const Plan& p = *work.plan;
  if (!all_indices_inside(work, positions, invalid)) return false;
  by_size(x.dtype, [&](auto t) {
    using T = decltype(t);
    parallel_for(p.outer, work.threads, [&](i64 plane) {
      unpool_plane<T>(p, x, plane_of(x, plane), positions, plane_of(positions, plane),
                      elements_of<T>(y, plane * p.out_plane()));
    });
  });
  return true;
}

bool unpool_backward(const Work& work, const View& gy, const View& positions, Dense gx,
                     i64* invalid) {
  const Plan& p = *work.plan;
  if (!all_indices_inside(work, positions, invalid)) return false;
  by_size(gy.dtype, [&](auto t) {
    using T = decltype(t);
    parallel_for(p.outer, work.threads, [&](i64 plane) {
      const auto bytes = static_cast<std::size_t>(p.out_plane() / p.inner) * sizeof(u32);
      unpool_plane_backward<T>(p, gy, plane_of(gy, plane), positions, plane_of(positions, plane),
                               reinterpret_cast<u32*>(thread_scratch(bytes)),
                               elements_of<T>(gx, plane * p.in_plane()));
    });
  });
  return true;
}

void pack_routes(const PackedRows& p, const std::uint8_t* from, std::uint8_t* to, int threads) {
  if (p.bits == 2) pack<2>(p, from, to, threads);
  else pack<4>(p, from, to, threads);
}
void unpack_routes(const PackedRows& p, const std::uint8_t* from, std::uint8_t* to, int threads) {
  if (p.bits == 2) unpack<2>(p, from, to, threads);
  else unpack<4>(p, from, to, threads);
}

}  // namespace

extern const RouteKernels route_kernels;
const RouteKernels route_kernels = {
    backward,       jvp,       pack_routes, unpack_routes,   indices,
    split_backward, split_jvp, unpool,      unpool_backward,
};

}  // namespace poolgrad::inline POOLGRAD_ISA
