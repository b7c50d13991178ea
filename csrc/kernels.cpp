// Every kernel, compiled once per instruction set: POOLGRAD_ISA names it.
#include "kernels.hpp"

#include "blend.hpp"
#include "parallel.hpp"
#include "route.hpp"
#include "select.hpp"
#include "spread.hpp"
#include "ties.hpp"

namespace poolgrad {
namespace {

constexpr i64 kWorthAThread =
    1 << 15;                      // elements; below, waking a thread costs more than it brings
constexpr i64 kTasksAThread = 4;  // so that a slow thread does not keep the others waiting

// Cuts the work into tasks: groups of planes, or, where planes are few, parts of one along the
// outermost pooled axis that has a choice.
struct Cut {
  i64 planes = 1, parts = 1;  // planes a task, parts a plane
  int axis = 2, threads = 1;

  Cut(const Plan& p, int wanted, bool outputs) {
    const auto length = [&](int a) { return outputs ? p.axis[a].out : p.axis[a].in; };
    const i64 plane = larger(p.in_plane(), p.out_plane());
    const i64 worth = larger(1, plane * p.outer / kWorthAThread);
    threads = static_cast<int>(smaller(wanted, worth));
    const i64 tasks = threads > 1 ? threads * kTasksAThread : 1;
    axis = length(0) > 1 ? 0 : length(1) > 1 ? 1 : 2;
    if (p.outer >= tasks) {
      planes =
          threads > 1 ? larger(1, smaller(p.outer / tasks, kWorthAThread / plane + 1)) : p.outer;
    } else {
      parts = smaller(length(axis), ceil_div(tasks, larger(1, p.outer)));
    }
  }

  // Calls body(first plane, last, box) for each task; Box is Tile (of outputs) or Piece (of
  // inputs).
  template <class Box, class F>
  void run(const Plan& p, bool outputs, F&& body) const {
    const i64 groups = ceil_div(p.outer, planes);
    parallel_for(groups * parts, threads, [&](i64 task) {
      const i64 group = task / parts, part = task % parts;
      Box box;
      for (int a = 0; a < 3; ++a) box.lo[a] = 0, box.hi[a] = outputs ? p.axis[a].out : p.axis[a].in;
      const i64 whole = box.hi[axis];
      box.lo[axis] = whole * part / parts;
      box.hi[axis] = whole * (part + 1) / parts;
      if (box.lo[axis] < box.hi[axis]) {
        body(group * planes, smaller(p.outer, (group + 1) * planes), box);
      }
    });
  }
};

template <class F>
void over_outputs(const Work& work, F&& body) {
  Cut(*work.plan, work.threads, true).run<Tile>(*work.plan, true, body);
}

template <class F>
void over_inputs(const Work& work, F&& body) {
  Cut(*work.plan, work.threads, false).run<Piece>(*work.plan, false, body);
}

// make(arena) is called twice: once to measure, once on this thread's scratch.
template <class Make, class Use>
void with_scratch(Make&& make, Use&& use) {
  Arena measure;
  (void)make(measure);
  Arena arena(thread_scratch(measure.used()));
  auto kit = make(arena);
  use(kit);
}

template <class T>
const T* plane_of(const View& v, i64 plane) {
  return reinterpret_cast<const T*>(v.data) + outer_offset(v, plane);
}

template <class F>
void by_dtype(Dtype dtype, F&& f) {
  if (dtype == Dtype::f32) f(float{});
  else f(double{});
}

template <class F>
void by_route(const Plan& p, F&& f) {
  if (p.route_bytes == 1) f(std::uint8_t{});
  else if (p.route_bytes == 2) f(std::uint16_t{});
  else f(u32{});
}

template <class T, bool Keep, bool Lone>
void max_of(const Work& work, const View& x, void* y, void* routes) {
  const Plan& p = *work.plan;
  using Op = Max<T, Keep, Lone>;
  struct Kit {
    Separable<Op> machine;
    u32* route_row;
  };
  over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
    const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
    with_scratch(
        [&](Arena& a) {
          return Kit{Separable<Op>(p, x, tile, a), Keep ? a.take<u32>(n) : nullptr};
        },
        [&](Kit& kit) {
          for (i64 plane = first; plane < last; ++plane) {
            kit.machine.start(plane_of<T>(x, plane));
            char* kept = static_cast<char*>(routes);
            if (Keep) kept += plane * p.out_plane() * p.route_bytes;
            select_tile<T, Keep, Lone>(p, tile, kit.machine,
                                       static_cast<T*>(y) + plane * p.out_plane(), kept,
                                       kit.route_row);
          }
        });
  });
}

void max_forward(const Work& work, const View& x, void* y, void* routes, bool lone) {
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    if (!routes) max_of<T, false, false>(work, x, y, routes);
    else if (lone) max_of<T, true, true>(work, x, y, routes);
    else max_of<T, true, false>(work, x, y, routes);
  });
}

// Gathering asks every place of every window: good while an input lies in few.
bool gathers(const Plan& p) {
  double asked = 1;
  for (const Axis& a : p.axis) {
    if (!has_phases(a)) return false;
    asked *= static_cast<double>(a.kernel) / static_cast<double>(smaller(a.stride, a.kernel));
  }
  return p.places <= 64 && asked <= 16;
}

void route_backward(const Work& work, const View& gy, const View& routes, void* gx) {
  const Plan& p = *work.plan;
  const auto run = [&](auto t, auto r, auto how) {
    using T = decltype(t);
    using R = decltype(r);
    using How = typename decltype(how)::type;
    over_inputs(work, [&](i64 first, i64 last, const Piece& piece) {
      with_scratch([&](Arena& a) { return How(p, piece, a); },
                   [&](How& kit) {
                     for (i64 plane = first; plane < last; ++plane) {
                       kit.run(gy, plane_of<T>(gy, plane), routes, plane_of<R>(routes, plane),
                               static_cast<T*>(gx) + plane * p.in_plane());
                     }
                   });
    });
  };
  by_dtype(work.dtype, [&](auto t) {
    by_route(p, [&](auto r) {
      using T = decltype(t);
      using R = decltype(r);
      if (gathers(p)) run(t, r, std::enable_if<true, Gather<T, R>>{});
      else run(t, r, std::enable_if<true, Scatter<T, R>>{});
    });
  });
}

void route_follow(const Work& work, const View& tangent, const View& routes, void* y) {
  const Plan& p = *work.plan;
  by_dtype(work.dtype, [&](auto t) {
    by_route(p, [&](auto r) {
      using T = decltype(t);
      using R = decltype(r);
      over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
        with_scratch([&](Arena& a) { return a.take<R>(p.out_row()); },
                     [&](R* buffer) {
                       for (i64 plane = first; plane < last; ++plane) {
                         follow_routes<T, R>(p, tile, tangent, plane_of<T>(tangent, plane), routes,
                                             plane_of<R>(routes, plane), buffer,
                                             static_cast<T*>(y) + plane * p.out_plane());
                       }
                     });
      });
    });
  });
}

void route_indices(const Work& work, const View& routes, i64* indices) {
  const Plan& p = *work.plan;
  by_route(p, [&](auto r) {
    using R = decltype(r);
    struct Kit {
      Places places;
      R* buffer;
    };
    over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
      with_scratch(
          [&](Arena& a) {
            return Kit{Places(p, p.axis[1].in * p.axis[2].in, p.axis[2].in, 1, a),
                       a.take<R>(p.out_row())};
          },
          [&](Kit& kit) {
            kit.places.fill();
            for (i64 plane = first; plane < last; ++plane) {
              routes_to_indices<R>(p, tile, routes, plane_of<R>(routes, plane), kit.places,
                                   kit.buffer, indices + plane * p.out_plane());
            }
          });
    });
  });
}

void split_winners(const Work& work, const View& x, const void* y, std::uint8_t* winners) {
  const Plan& p = *work.plan;
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
      for (i64 plane = first; plane < last; ++plane) {
        mark_winners<T>(p, tile, x, plane_of<T>(x, plane),
                        static_cast<const T*>(y) + plane * p.out_plane(),
                        winners + plane * p.out_plane() * p.winner_bytes());
      }
    });
  });
}

void split_backward(const Work& work, const View& gy, const std::uint8_t* winners, void* gx) {
  const Plan& p = *work.plan;
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    over_inputs(work, [&](i64 first, i64 last, const Piece& piece) {
      for (i64 plane = first; plane < last; ++plane) {
        share_gradients<T>(p, piece, gy, plane_of<T>(gy, plane),
                           winners + plane * p.out_plane() * p.winner_bytes(),
                           static_cast<T*>(gx) + plane * p.in_plane());
      }
    });
  });
}

void split_follow(const Work& work, const View& tangent, const std::uint8_t* winners, void* y) {
  const Plan& p = *work.plan;
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
      for (i64 plane = first; plane < last; ++plane) {
        follow_winners<T>(p, tile, tangent, plane_of<T>(tangent, plane),
                          winners + plane * p.out_plane() * p.winner_bytes(),
                          static_cast<T*>(y) + plane * p.out_plane());
      }
    });
  });
}

void average_forward(const Work& work, const View& x, void* y, bool count_padding, double divisor) {
  const Plan& p = *work.plan;
  const Divisor divide{count_padding, divisor};
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    struct Kit {
      Separable<Sum<T, T>> machine;
      T *sums, *width_divisors;
    };
    over_outputs(work, [&](i64 first, i64 last, const Tile& tile) {
      const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
      with_scratch(
          [&](Arena& a) {
            return Kit{Separable<Sum<T, T>>(p, x, tile, a), a.take<T>(n), a.take<T>(n)};
          },
          [&](Kit& kit) {
            divide.fill_row(p, tile.lo[2], tile.hi[2], kit.width_divisors);
            for (i64 plane = first; plane < last; ++plane) {
              kit.machine.start(plane_of<T>(x, plane));
              average_tile<T, T>(p, tile, kit.machine, divide,
                                 static_cast<T*>(y) + plane * p.out_plane(), kit.sums,
                                 kit.width_divisors);
            }
          });
    });
  });
}

void average_backward(const Work& work, const View& gy, void* gx, bool count_padding,
                      double divisor) {
  const Plan& p = *work.plan;
  const Divisor divide{count_padding, divisor};
  by_dtype(work.dtype, [&](auto t) {
    using T = decltype(t);
    using Kit = Spread<T, T>;
    over_inputs(work, [&](i64 first, i64 last, const Piece& piece) {
      with_scratch([&](Arena& a) { return Kit(p, piece, a); },
                   [&](Kit& kit) {
                     for (i64 plane = first; plane < last; ++plane) {
                       kit.run(gy, plane_of<T>(gy, plane), divide,
                               static_cast<T*>(gx) + plane * p.in_plane());
                     }
                   });
    });
  });
}

}  // namespace

#define POOLGRAD_TABLE_(isa) kernels_##isa
#define POOLGRAD_TABLE(isa) POOLGRAD_TABLE_(isa)
#define POOLGRAD_NAME_(isa) #isa
#define POOLGRAD_NAME(isa) POOLGRAD_NAME_(isa)

extern const Kernels POOLGRAD_TABLE(POOLGRAD_ISA);
const Kernels POOLGRAD_TABLE(POOLGRAD_ISA) = {
    POOLGRAD_NAME(POOLGRAD_ISA),
    max_forward,
    route_backward,
    route_follow,
    route_indices,
    split_winners,
    split_backward,
    split_follow,
    average_forward,
    average_backward,
};

}  // namespace poolgrad
