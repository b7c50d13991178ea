// Divides the outputs or the inputs of a kernel call into tasks and runs the tasks on threads, each
// with scratch memory.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "geometry/window.hpp"
#include "kernels.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Minimum number of elements for each thread: fewer cost less than waking a thread.
constexpr i64 kElementsPerThread = 1 << 15;
// Tasks for each thread, for load balance: a minimum for tasks of whole planes; a maximum for parts
// of planes, because neighbouring parts read the same inputs.
constexpr i64 kTasksPerThread = 16, kPartsPerThread = 4;
// Elements from which a longer task gains nothing: the fixed cost of a task (tables, memory that is
// not prefetched yet) no longer counts.
constexpr i64 kTaskElements = 1 << 18;
// Maximum number of inputs of all windows of a task, where tasks can be shorter: a kernel can be
// interrupted between tasks only.
constexpr i64 kTaskTaps = 1 << 23;

// Tasks of a call: groups of planes or, if there are few planes, parts of a plane along its
// outermost pooled axis of more than one element. Planes stay whole if windows overlap (the parts
// would read inputs twice) and every thread gets the same number of planes.
struct Partition {
  i64 planes = 1, parts = 1;  // planes of a task, parts of a plane
  int axis = 2, threads = 1;  // axis: divided into parts

  Partition(const Plan& p, int max_threads, bool outputs) {
    const auto length = [&](int a) { return outputs ? p.axis[a].out : p.axis[a].in; };
    const i64 plane = larger(p.in_plane(), p.out_plane());
    const i64 useful = larger(1, plane * p.outer / kElementsPerThread);
    threads = static_cast<int>(smaller(max_threads, useful));
    const i64 parts_wanted = threads > 1 ? threads * kPartsPerThread : 1;
    axis = length(0) > 1 ? 0 : length(1) > 1 ? 1 : 2;
    if (p.outer >= parts_wanted || (p.axis[axis].overlap && p.outer % threads == 0)) {
      const i64 most = larger(1, p.outer / (threads * kTasksPerThread));
      planes = threads > 1 ? smaller(most, kTaskElements / plane + 1) : p.outer;
    } else {
      parts = smaller(length(axis), ceil_div(parts_wanted, larger(1, p.outer)));
    }
    planes = larger(1, smaller(planes, kTaskTaps / taps_of_plane(p)));
  }

  // Divides a plane of many taps into parts of the length of other tasks, for kernels whose outputs
  // share no intermediate results.
  void divide_planes(const Plan& p, bool outputs) {
    const i64 length = outputs ? p.axis[axis].out : p.axis[axis].in;
    if (planes == 1) parts = larger(parts, smaller(length, taps_of_plane(p) / kTaskTaps));
  }

  // Rounds the planes of each task to a multiple of `count`, if there are enough planes for all
  // threads.
  void group_planes(i64 count, i64 all) {
    planes = larger(planes, smaller(count, all / threads));
    if (planes > count) planes -= planes % count;
  }

  // Number of inputs of all windows of a plane, at most 2^62.
  static i64 taps_of_plane(const Plan& p) {
    const i64 outputs = larger(1, p.out_plane());
    return outputs * smaller(max_valid_inputs(p), (i64{1} << 62) / outputs);
  }
};

// The tasks of a kernel call; see over_tiles().
template <class Box, class MakeState, class Compute>
class TileTasks {
 public:
  TileTasks(const Work& work, MakeState& make_state, Compute& compute, bool independent, i64 group)
      : plan_(*work.plan),
        partition_(plan_, work.threads, kOutputs),
        make_state_(make_state),
        compute_(compute) {
    partition_.group_planes(group, plan_.outer);
    if (independent) partition_.divide_planes(plan_, kOutputs);
  }

  i64 count() const { return ceil_div(plan_.outer, partition_.planes) * partition_.parts; }
  int threads() const { return partition_.threads; }

  static void run(void* tasks, i64 task) {
    const TileTasks& self = *static_cast<TileTasks*>(tasks);
    const Plan& p = self.plan_;
    const auto [planes, parts, axis, threads] = self.partition_;
    const i64 part = task % parts, first = task / parts * planes;
    const i64 last = smaller(p.outer, first + planes);
    Box box;
    box.planes = last - first;
    for (int a = 0; a < 3; ++a) box.lo[a] = 0, box.hi[a] = kOutputs ? p.axis[a].out : p.axis[a].in;
    const i64 length = box.hi[axis];
    box.lo[axis] = length * part / parts;
    box.hi[axis] = length * (part + 1) / parts;
    if (box.lo[axis] == box.hi[axis]) return;
    Arena measure;
    (void)self.make_state_(box, measure);
    Arena arena(thread_scratch(measure.used()));
    auto state = self.make_state_(box, arena);
    if (arena.used() != measure.used())
      throw std::logic_error("scratch memory was measured wrongly");
    if constexpr (std::is_invocable_v<Compute&, decltype(state)&, i64, i64, const Box&>) {
      self.compute_(state, first, last, box);
    } else {
      for (i64 plane = first; plane < last; ++plane) self.compute_(state, plane, box);
    }
  }

 private:
  static constexpr bool kOutputs = std::is_same_v<Box, Tile>;

  const Plan& plan_;
  Partition partition_;
  MakeState& make_state_;
  Compute& compute_;
};

// Computes the tiles of a kernel call in tasks: state = make_state(tile, arena), in the
// scratch memory of the thread, then compute(state, plane, tile) for each plane of the task, or
// compute(state, first plane, last, tile) once. Box: Tile (of outputs) or InputTile. independent:
// the tiles share no intermediate results, so that tasks may have any length. group: number of
// planes of which each task has a multiple, if there are enough.
template <class Box, class MakeState, class Compute>
void over_tiles(const Work& work, MakeState&& make_state, Compute&& compute,
                bool independent = false, i64 group = 1) {
  TileTasks<Box, MakeState, Compute> tasks(work, make_state, compute, independent, group);
  run_tasks(tasks.count(), tasks.threads(), tasks.run, &tasks);
}

// The same with state = State(plan, tile, arena, arguments...) and compute(state, plane).
template <class Box, class State, class Compute, class... Arguments>
void over_states(const Work& work, bool independent, Compute&& compute,
                 const Arguments&... arguments) {
  over_tiles<Box>(
      work,
      [&](const Box& tile, Arena& arena) { return State(*work.plan, tile, arena, arguments...); },
      [&](State& state, i64 plane, const Box&) { compute(state, plane); }, independent);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
