// Divides a kernel's outputs or inputs into tasks and runs them, each with scratch memory.
#pragma once

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "geometry/tile.hpp"
#include "kernels.hpp"

namespace poolgrad {
namespace {

// Elements for each thread, at least: fewer cost less than waking a thread.
constexpr i64 kWorthAThread = 1 << 15;
// Tasks for each thread, for load balance: at least so many groups of planes, and at most so many
// parts of planes, because neighbouring parts read the same inputs.
constexpr i64 kTasksAThread = 16, kPartsAThread = 4;
// Elements of a task, at most: each task computes tables and starts without prefetched memory.
constexpr i64 kTask = 1 << 18;
// Inputs of all windows of a task, at most, where tasks can be shorter: a kernel can be interrupted
// between tasks only.
constexpr i64 kLongestTask = 1 << 23;

// Divides the work into tasks: groups of planes or, if there are few planes, parts of a plane along
// its outermost pooled axis of more than one element. Planes stay whole if windows overlap (the
// parts would read inputs twice) and every thread gets the same number of planes.
struct Cut {
  i64 planes = 1, parts = 1;  // planes of a task, parts of a plane
  int axis = 2, threads = 1;

  Cut(const Plan& p, int wanted, bool outputs) {
    const auto length = [&](int a) { return outputs ? p.axis[a].out : p.axis[a].in; };
    const i64 plane = larger(p.in_plane(), p.out_plane());
    const i64 worth = larger(1, plane * p.outer / kWorthAThread);
    threads = static_cast<int>(smaller(wanted, worth));
    const i64 parts_wanted = threads > 1 ? threads * kPartsAThread : 1;
    axis = length(0) > 1 ? 0 : length(1) > 1 ? 1 : 2;
    if (p.outer >= parts_wanted || (p.axis[axis].overlap && p.outer % threads == 0)) {
      const i64 most = larger(1, p.outer / (threads * kTasksAThread));
      planes = threads > 1 ? smaller(most, kTask / plane + 1) : p.outer;
    } else {
      parts = smaller(length(axis), ceil_div(parts_wanted, larger(1, p.outer)));
    }
    planes = larger(1, smaller(planes, kLongestTask / effort(p)));
  }

  // Divides a large plane into parts of the length of other tasks, for work that parts do not
  // repeat.
  void shorten(const Plan& p, bool outputs) {
    const i64 length = outputs ? p.axis[axis].out : p.axis[axis].in;
    if (planes == 1) parts = larger(parts, smaller(length, effort(p) / kLongestTask));
  }

  // Makes each task `some` planes or a multiple of that, if there are enough for all threads.
  void take_together(i64 some, i64 all) {
    planes = larger(planes, smaller(some, all / threads));
    if (planes > some) planes -= planes % some;
  }

  // Number of inputs of all windows of a plane, at most 2^62.
  static i64 effort(const Plan& p) {
    const i64 outputs = larger(1, p.out_plane());
    return outputs * smaller(most_real(p), (i64{1} << 62) / outputs);
  }

  // Calls body(first plane, last, box) for each task; Box is Tile (of outputs) or InputTile (of
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

// Calls use(state) with the task's state, which make(arena) places in this thread's scratch memory;
// make is called twice, first to measure.
template <class Make, class Use>
void with_scratch(Make&& make, Use&& use) {
  Arena measure;
  (void)make(measure);
  Arena arena(thread_scratch(measure.used()));
  auto state = make(arena);
  use(state);
}

// For each part of the outputs: state = make(tile, arena), then use(state, first plane, last, tile)
// for several planes, `together` of them if there are enough.
template <class Make, class Use>
void over_outputs_of_planes(const Work& work, i64 together, Make&& make, Use&& use,
                            bool one_by_one = false) {
  const auto body = [&](i64 first, i64 last, const Tile& tile) {
    with_scratch([&](Arena& arena) { return make(tile, arena); },
                 [&](auto& state) { use(state, first, last, tile); });
  };
  Cut cut(*work.plan, work.threads, true);
  cut.take_together(together, work.plan->outer);
  if (one_by_one) cut.shorten(*work.plan, true);
  cut.run<Tile>(*work.plan, true, body);
}
// one_by_one: outputs share no intermediate results, so that tasks may have any length
template <class Make, class Use>
void over_outputs(const Work& work, Make&& make, Use&& use, bool one_by_one = false) {
  const auto use_all = [&](auto& state, i64 first, i64 last, const Tile& tile) {
    for (i64 plane = first; plane < last; ++plane) use(state, plane, tile);
  };
  over_outputs_of_planes(work, 1, make, use_all, one_by_one);
}

// The same for parts of the inputs; state = make(piece, planes, arena).
template <class Make, class Use>
void over_inputs_of_planes(const Work& work, i64 together, Make&& make, Use&& use,
                           bool one_by_one = false) {
  Cut cut(*work.plan, work.threads, false);
  cut.take_together(together, work.plan->outer);
  if (one_by_one) cut.shorten(*work.plan, false);
  cut.run<InputTile>(*work.plan, false, [&](i64 first, i64 last, const InputTile& piece) {
    with_scratch([&](Arena& arena) { return make(piece, last - first, arena); },
                 [&](auto& state) { use(state, first, last, piece); });
  });
}
template <class Make, class Use>
void over_inputs(const Work& work, Make&& make, Use&& use, bool one_by_one = false) {
  over_inputs_of_planes(
      work, 1, [&](const InputTile& piece, i64, Arena& arena) { return make(piece, arena); },
      [&](auto& state, i64 first, i64 last, const InputTile& piece) {
        for (i64 plane = first; plane < last; ++plane) use(state, plane, piece);
      },
      one_by_one);
}

template <class F>
void by_route(Dtype dtype, F&& f) {
  if (dtype == Dtype::uint8) f(std::uint8_t{});
  else f(u32{});
}

// Writes a plane's values of a parameter, one for each of `outputs` outputs and each channel; the
// magnitude of each is at least `least`.
template <class A>
void fill_parameter(const Plan& p, Parameter from, i64 plane, i64 outputs, A* row, A least = 0) {
  const A* values = static_cast<const A*>(from.values);
  for (i64 o = 0; o < outputs; ++o) {
    for (i64 c = 0; c < p.inner; ++c) {
      const A value = values[(p.inner_is_channel ? c : plane) % from.count];
      const bool near = value < least && -value < least;
      row[o * p.inner + c] = near ? (value < A(0) ? -least : least) : value;
    }
  }
}

}  // namespace
}  // namespace poolgrad
