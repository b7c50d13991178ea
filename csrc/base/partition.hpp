// Who does which part of a kernel's work, on which scratch memory.
#pragma once

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "geometry/tile.hpp"
#include "kernels.hpp"

namespace poolgrad {
namespace {

constexpr i64 kWorthAThread =
    1 << 15;  // elements; below, waking a thread costs more than it brings
// Tasks a thread, so that a slow one does not keep the others waiting: at least of planes, and at
// most where planes are cut into parts, which share inputs.
constexpr i64 kTasksAThread = 16, kPartsAThread = 4;
// Elements of a task: it begins with tables, and with memory that nobody asked for ahead.
constexpr i64 kTask = 1 << 18;
// Inputs that all windows of a task hold together, where there is a choice: a kernel can only be
// interrupted between tasks.
constexpr i64 kLongestTask = 1 << 23;

// Cuts the work into tasks: groups of planes, or, where planes are few, parts of one along the
// outermost pooled axis that has a choice. Not where windows overlap, so that parts would do some
// work twice, and every thread gets as many whole planes.
struct Cut {
  i64 planes = 1, parts = 1;  // planes a task, parts a plane
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

  // Cuts a large plane into parts as short as other tasks: for work that parts do not repeat.
  void shorten(const Plan& p, bool outputs) {
    const i64 length = outputs ? p.axis[axis].out : p.axis[axis].in;
    if (planes == 1) parts = larger(parts, smaller(length, effort(p) / kLongestTask));
  }

  // At least so many planes a task, if there are enough for all threads, or a multiple of that.
  void take_together(i64 some, i64 all) {
    planes = larger(planes, smaller(some, all / threads));
    if (planes > some) planes -= planes % some;
  }

  // Inputs that the windows of a plane hold together, at most 2^62.
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

// make(arena) is called twice: once to measure, once on this thread's scratch.
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
// one_by_one: outputs share no work, so that tasks may be of any length
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

// A plane's numbers of a parameter, one for each of `outputs` outputs and each channel; none nearer
// to 0 than `least`.
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
