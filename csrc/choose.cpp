// Chooses the algorithm of a kernel call. Compiled once, for any processor of this architecture:
// the vector size of the instruction set is a field of Call.
#include "choose.hpp"

#include <atomic>
#include <cstring>

#include "geometry/partition.hpp"

namespace poolgrad {
namespace {

// Returns the size of the type in which a maximum compares elements.
i64 compared_bytes(Dtype dtype) {
  const bool native = size_of(dtype) == 1 ? dtype != Dtype::boolean
                                          : dtype == Dtype::float16 || dtype == Dtype::bfloat16;
  return native ? size_of(dtype) : 4;
}
// Whether elements of this dtype are added without a conversion.
bool is_native(Dtype dtype) { return dtype == Dtype::float32 || dtype == Dtype::float64; }
// The size of the type in which elements are added.
i64 summed_bytes(Dtype dtype) { return is_wide(dtype) ? 8 : 4; }

i64 lanes(const Call& call, i64 bytes) { return call.vector_bytes / bytes; }

bool is_regular(const Plan& p) {
  return p.axis[0].regular() && p.axis[1].regular() && p.axis[2].regular();
}
bool has_few_taps(const Plan& p) { return is_regular(p) && p.taps <= kMaxTaps; }

// Whether reading all taps of each window is cheaper than reducing along one axis after the other.
bool shares_little(const Plan& p) {
  i64 distinct = 1;  // taps of a window that the previous window does not hold
  for (const Axis& a : p.axis) distinct *= smaller(a.stride, a.kernel);
  const i64 most = distinct > 1 ? 25 : p.inner_axis >= 0 ? 16 : 12;
  return has_few_taps(p) && p.taps <= larger(4 * distinct, most);
}

// Whether the windows are squares whose kernel size and stride are compiled in.
bool is_compiled_square(const Plan& p, i64 max_stride) {
  const Axis &height = p.axis[1], &width = p.axis[2];
  const bool square = height.kernel == width.kernel && height.stride == width.stride &&
                      height.dilation == width.dilation;
  const i64 k = width.kernel, s = width.stride;
  return has_few_taps(p) && square &&
         ((k == 2 && s <= 2) || (k == 3 && s <= 2) || (k == 3 && s == 3 && max_stride >= 3));
}

// Whether every task computes whole rows of outputs.
bool has_whole_rows(const Call& call) {
  const Plan& p = *call.plan;
  if (p.axis[0].out > 1 || p.axis[1].out > 1) return true;
  Partition partition(p, call.threads, true);
  if (call.task == Task::extreme) partition.divide_planes(p, true);
  return partition.parts == 1;
}

// --- The calls that an algorithm handles ---

bool always(const Call&) { return true; }

// Whether a maximum has specialised code: not for float64, 32- and 64-bit integers.
bool is_specialised(const Call& call) { return !call.general_only && !is_wide(call.input.dtype); }

bool handles_plane_means(const Call& call) {
  const Plan& p = *call.plan;
  const Axis& width = p.axis[2];
  const bool in_place = is_native(call.input.dtype) && call.input.contiguous_rows;
  return p.inner == 1 && p.in_rows() == 1 && is_global(p.axis[0]) && is_global(p.axis[1]) &&
         is_global(width) && (in_place || width.in <= kMaxCopiedPlane);
}

bool handles_unrolled(const Call& call) { return has_few_taps(*call.plan); }
bool handles_unrolled_extreme(const Call& call) {
  return is_specialised(call) && handles_unrolled(call);
}
bool handles_unrolled_nonlinear(const Call& call) {
  const Plan& p = *call.plan;
  // Valid inputs are counted, not taps: padding must not change how sums are rounded.
  const i64 inputs = max_valid_inputs(p);
  const bool fills_lanes = p.axis[2].m > 1 || p.inner > 1 || inputs <= kTapsAcrossLanes;
  return is_regular(p) && inputs <= kMaxNonlinearTaps && fills_lanes;
}

bool handles_joined_rows(const Call& call) {
  const Plan& p = *call.plan;
  return handles_unrolled_extreme(call) && p.inner == 1 && is_point(p.axis[0]) &&
         p.axis[1].out > 1 && p.axis[1].stride == p.axis[2].stride;
}

// Vectors of channels of a pixel.
bool has_channel_vectors(const Call& call, i64 bytes) {
  const Plan& p = *call.plan;
  return p.inner >= lanes(call, bytes) && is_point(p.axis[0]) && p.axis[2].dilation == 1 &&
         call.input.contiguous_channels && is_compiled_square(p, 2);
}
// Vectors of columns.
bool has_column_vectors(const Call& call, i64 bytes) {
  const Plan& p = *call.plan;
  const Axis& width = p.axis[2];
  constexpr i64 kMaxDilation = 4;
  const i64 max_stride = bytes < 4 ? 2 : 3;  // no shuffle of every third byte
  const bool close = width.dilation == 1 || (width.stride == 1 && width.dilation <= kMaxDilation);
  return p.inner == 1 && close && is_compiled_square(p, max_stride) &&
         width.out >= lanes(call, bytes) / 2;
}
bool handles_register_blocked_extreme(const Call& call) {
  const Dtype dtype = call.input.dtype;
  const i64 bytes = compared_bytes(dtype);
  const bool in_place = !call.flips && (bytes < 4 || dtype == Dtype::float32);
  return is_specialised(call) && has_whole_rows(call) &&
         (has_column_vectors(call, bytes) || (in_place && has_channel_vectors(call, bytes)));
}
bool handles_register_blocked_average(const Call& call) {
  const Dtype dtype = call.input.dtype;
  return !call.general_only && !is_wide(dtype) && has_whole_rows(call) &&
         (has_column_vectors(call, 4) || (dtype == Dtype::float32 && has_channel_vectors(call, 4)));
}

bool handles_column_sums(const Call& call) { return call.plan->inner_axis < 0; }

bool handles_sorting_network(const Call& call) {
  return has_few_taps(*call.plan) && call.plan->taps <= kMaxSorted;
}

bool handles_plane_gradients(const Call& call) {
  const Plan& p = *call.plan;
  return p.inner == 1 && is_global(p.axis[0]) && is_global(p.axis[1]) && is_global(p.axis[2]);
}

// Small windows whose gradients are computed in vectors of columns: those of averages, and others.
bool has_backward_column_vectors(const Call& call) {
  const Plan& p = *call.plan;
  const Axis &height = p.axis[1], &width = p.axis[2];
  const bool single_rows = has_few_taps(p) && height.kernel == 1 && height.stride == 1 &&
                           (width.kernel == 2 || width.kernel == 3) && width.stride <= 2;
  return !call.general_only && p.inner == 1 && max_windows(p.axis[0]) == 1 && width.dilation == 1 &&
         (single_rows || (is_compiled_square(p, 2) && height.in > 1)) &&
         width.in / width.stride >= lanes(call, summed_bytes(call.input.dtype)) / 2;
}
// Gradients and routes of channels must be read in place.
bool handles_register_blocked_backward(const Call& call) {
  const Dtype dtype = call.input.dtype;
  const bool channels = is_native(dtype) && call.plan->axis[1].in > 1 &&
                        has_channel_vectors(call, summed_bytes(dtype)) &&
                        call.routes.dtype == Dtype::uint8 && call.routes.contiguous_channels;
  return has_backward_column_vectors(call) || (!call.general_only && channels);
}

// Stride 1 in both directions: the windows that hold an input form a window over the outputs.
bool handles_transposed(const Call& call) {
  for (const Axis& a : call.plan->axis) {
    if (!a.regular() || a.stride > 1 || (a.m == 1 && a.kernel > 1)) return false;
  }
  return true;
}
// --- The calls for which an algorithm is expected to be faster than those below it ---
// For averages this depends on the shape of windows only, because it decides how sums are rounded.

bool prefers_unrolled(const Call& call) {
  const Plan& p = *call.plan;
  // With channels last, the inner loop of unrolled windows runs over the channels of one pixel;
  // that of separable filtering runs over all pixels of a row.
  constexpr i64 kFewChannels = 16;
  const bool short_inner_loops =
      p.inner > 1 &&
      (p.inner < kFewChannels || (compared_bytes(call.input.dtype) == 4 && !shares_nothing(p)));
  return shares_little(p) && !short_inner_loops;
}
bool prefers_register_blocked(const Call& call) {
  return call.plan->inner == 1 || shares_little(*call.plan);
}
bool prefers_unrolled_average(const Call& call) {
  const Plan& p = *call.plan;
  return shares_nothing(p) || shares_little(p);
}

// Joined rows also compute the gaps between rows of outputs, whose share grows with the stride.
bool prefers_joined_rows(const Call& call) {
  const Axis &height = call.plan->axis[1], &width = call.plan->axis[2];
  constexpr i64 kFew = 32, kShort = 4 * kFew;  // outputs of a row; inputs
  const bool shuffled = width.stride == 2 && width.dilation == 1 && width.kernel <= 3;
  const i64 most = width.stride == 1   ? 2 * kFew
                   : shuffled          ? kFew
                   : width.stride == 2 ? 6  // inputs are loaded one by one
                                       : 3;
  // In a tall plane, most of the computed elements must be outputs, and windows must be low.
  const bool small = covered_length(height, height.out) <= kShort;
  const bool dense = height.stride <= 2 && reach(height) < kShort;
  return shares_little(*call.plan) && width.out <= most &&
         covered_length(width, width.out) <= kShort && (small || dense);
}

// In short rows the scatter is faster, as it computes several planes at a time.
bool prefers_register_blocked_backward(const Call& call) {
  const Plan& p = *call.plan;
  return p.axis[1].in > 1 || p.axis[2].in >= 4 * lanes(call, summed_bytes(call.input.dtype));
}

// Whether each input lies in so few windows that adding them costs less than reducing transposed
// windows.
bool prefers_gather(const Call& call) {
  i64 windows = 1;
  for (const Axis& a : call.plan->axis) windows *= smaller(max_windows(a), kMaxInverseTaps + 1);
  return windows <= kMaxInverseTaps;
}

bool prefers_column_sums(const Call& call) {
  const auto apart = [](const Axis& a) { return a.adaptive || !a.overlap; };
  const Plan& p = *call.plan;
  return apart(p.axis[0]) && apart(p.axis[1]) && p.axis[1].kernel > 1;
}

struct TableRow {
  Task task;
  Algorithm algorithm;
  bool (*handles)(const Call&);
  bool (*prefers)(const Call&);
};

using A = Algorithm;

constexpr TableRow kTable[] = {
    {Task::extreme, A::register_blocked, handles_register_blocked_extreme,
     prefers_register_blocked},
    {Task::extreme, A::unrolled_joined_rows, handles_joined_rows, prefers_joined_rows},
    {Task::extreme, A::unrolled, handles_unrolled_extreme, prefers_unrolled},
    {Task::extreme, A::separable, always, always},

    {Task::median, A::sorting_network, handles_sorting_network, always},
    {Task::median, A::sliding_ranks, always, always},
    {Task::draw, A::copied_windows, always, always},

    {Task::average, A::plane_means, handles_plane_means, always},
    {Task::average, A::register_blocked, handles_register_blocked_average,
     prefers_unrolled_average},
    {Task::average, A::unrolled, handles_unrolled, prefers_unrolled_average},
    {Task::average, A::column_sums, handles_column_sums, prefers_column_sums},
    {Task::average, A::separable, always, always},

    {Task::nonlinear, A::unrolled, handles_unrolled_nonlinear, always},
    {Task::nonlinear, A::copied_windows, always, always},

    {Task::routes_backward, A::register_blocked_backward, handles_register_blocked_backward,
     prefers_register_blocked_backward},
    {Task::routes_backward, A::scatter_routes, always, always},

    {Task::average_backward, A::plane_gradients, handles_plane_gradients, always},
    {Task::average_backward, A::register_blocked_backward, has_backward_column_vectors,
     prefers_register_blocked_backward},
    {Task::average_backward, A::gather, always, prefers_gather},
    {Task::average_backward, A::transposed_separable, handles_transposed, always},
    {Task::average_backward, A::gather, always, always},

    {Task::weights_backward, A::scatter_weights, always, always},
};

#define POOLGRAD_STRING(name) #name,
constexpr const char* kNames[kAlgorithms] = {POOLGRAD_ALGORITHMS(POOLGRAD_STRING)};

constexpr int kNotForced = -1;
std::atomic<int> forced{kNotForced};
thread_local Trace* trace = nullptr;

Algorithm by_table(const Call& call, int wanted) {
  for (const TableRow& row : kTable) {
    if (wanted == kNotForced) break;
    if (row.task == call.task && static_cast<int>(row.algorithm) == wanted && row.handles(call))
      return row.algorithm;
  }
  for (const TableRow& row : kTable) {
    if (row.task == call.task && row.prefers(call) && row.handles(call)) return row.algorithm;
  }
  __builtin_unreachable();  // the last row of each task accepts every call
}

}  // namespace

Algorithm choose(const Call& call) {
  const Algorithm algorithm = by_table(call, forced.load(std::memory_order_relaxed));
  if (trace) trace->add(algorithm);
  return algorithm;
}

const char* name_of(Algorithm algorithm) { return kNames[static_cast<int>(algorithm)]; }

bool force_algorithm(const char* name) {
  int found = kNotForced;
  for (int k = 0; k < kAlgorithms; ++k) {
    if (std::strcmp(kNames[k], name) == 0) found = k;
  }
  if (found == kNotForced && *name) return false;
  forced.store(found, std::memory_order_relaxed);
  return true;
}

Trace::Trace(bool dry) : outer_(trace) {
  before_.dry = dry;
  trace = this;
  outer_count_ = count_tasks(&before_);
}
Trace::~Trace() {
  trace = outer_;
  count_tasks(outer_count_);
}
void Trace::add(Algorithm algorithm) {
  if (size_ == kMaxChoices) return;
  choices_[size_].algorithm = algorithm;
  choices_[size_].count.dry = before_.dry;
  count_tasks(&choices_[size_++].count);
}

}  // namespace poolgrad
