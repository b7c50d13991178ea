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
  const bool native = dtype == Dtype::uint8 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
  return native ? size_of(dtype) : 4;
}
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
  return p.inner == 1 && p.in_rows() == 1 && is_global(p.axis[0]) && is_global(p.axis[1]) &&
         is_global(width);
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

bool handles_register_blocked(const Call& call, i64 bytes) {
  const Plan& p = *call.plan;
  const Axis& width = p.axis[2];
  constexpr i64 kMaxDilation = 4;
  const i64 max_stride = bytes < 4 ? 2 : 3;  // no shuffle of every third byte
  const bool close = width.dilation == 1 || (width.stride == 1 && width.dilation <= kMaxDilation);
  return p.inner == 1 && close && is_compiled_square(p, max_stride) &&
         width.out >= lanes(call, bytes) / 2 && has_whole_rows(call);
}
bool handles_register_blocked_extreme(const Call& call) {
  return is_specialised(call) && handles_register_blocked(call, compared_bytes(call.input.dtype));
}
bool handles_register_blocked_average(const Call& call) {
  return !call.general_only && !is_wide(call.input.dtype) && handles_register_blocked(call, 4);
}

bool has_channel_vectors(const Call& call, i64 bytes) {
  const Plan& p = *call.plan;
  return p.inner >= lanes(call, bytes) && is_point(p.axis[0]) && p.axis[2].dilation == 1 &&
         is_compiled_square(p, 2);
}
bool handles_channels_last_extreme(const Call& call) {
  const Dtype dtype = call.input.dtype;
  const i64 bytes = compared_bytes(dtype);
  const bool native = bytes < 4 || dtype == Dtype::float32;
  return is_specialised(call) && !call.negated && native && call.input.contiguous_channels &&
         has_channel_vectors(call, bytes);
}

bool handles_channels_last_average(const Call& call) {
  return !call.general_only && call.input.dtype == Dtype::float32 &&
         call.input.contiguous_channels && has_channel_vectors(call, 4);
}

bool handles_van_herk_2d(const Axis& depth, const Axis& height, const Axis& width, i64 taps) {
  return is_point(depth) && height.regular() && width.regular() && height.kernel > 1 &&
         height.dilation == 1 && height.stride <= height.kernel && width.stride == 1 &&
         height.kernel <= 2 * height.n + 64 && reach(width) <= 2 * width.m + 64 &&
         taps <= kMaxVanHerkTaps;
}
bool handles_van_herk_2d(const Call& call) {
  const Plan& p = *call.plan;
  return handles_van_herk_2d(p.axis[0], p.axis[1], p.axis[2], p.taps);
}
bool handles_van_herk_2d_extreme(const Call& call) {
  return is_specialised(call) && handles_van_herk_2d(call);
}

bool handles_transposed_planes(const Call& call) {
  const Plan& p = *call.plan;
  const i64 in = p.in_plane(), out = p.out_plane(), planes = lanes(call, sizeof(float));
  return handles_van_herk_2d_extreme(call) && p.inner == 1 && call.input.contiguous_rows &&
         in >= planes && out >= planes &&
         larger(in, out) <= kMaxTransposedBytes / call.vector_bytes;
}

bool handles_column_sums(const Call& call) { return call.plan->inner_axis < 0; }

bool handles_sorting_network(const Call& call) {
  return has_few_taps(*call.plan) && call.plan->taps <= kMaxSorted;
}

bool handles_plane_gradients(const Call& call) {
  const Plan& p = *call.plan;
  return p.inner == 1 && is_global(p.axis[0]) && is_global(p.axis[1]) && is_global(p.axis[2]);
}

bool handles_gather(const Plan& p, bool routed) {
  const bool disjoint = !routed && is_disjoint(p);
  i64 inverse_taps = 1;
  for (const Axis& a : p.axis) {
    if (!a.regular() || (a.kernel > 1024 && !disjoint) || reach(a) / a.stride >= 16) return false;
    inverse_taps *= max_windows(a);
  }
  return inverse_taps <= kMaxInverseTaps &&
         (disjoint || p.axis[2].stride <= (p.inner > 1 ? kMaxPhases : 8));
}
bool handles_gather_of_routes(const Call& call) { return handles_gather(*call.plan, true); }
bool handles_gather_of_averages(const Call& call) { return handles_gather(*call.plan, false); }

bool handles_register_blocked_backward(const Call& call) {
  const Plan& p = *call.plan;
  const Axis& width = p.axis[2];
  return !call.general_only && p.inner == 1 && width.dilation == 1 && p.axis[1].in > 1 &&
         is_compiled_square(p, 2) &&
         width.in / width.stride >= lanes(call, summed_bytes(call.input.dtype)) / 2;
}
// Adds in the same order as `gather`.
bool handles_register_blocked_average_backward(const Call& call) {
  return handles_gather_of_averages(call) && handles_register_blocked_backward(call);
}
bool handles_channels_last_backward(const Call& call) {
  const Dtype dtype = call.input.dtype;
  const bool native = dtype == Dtype::float32 || dtype == Dtype::float64;
  return !call.general_only && native && call.input.contiguous_channels &&
         call.plan->axis[1].in > 1 && call.routes.dtype == Dtype::uint8 &&
         call.routes.contiguous_channels && has_channel_vectors(call, summed_bytes(dtype));
}

// Stride 1 in both directions: the windows that hold an input form a window over the outputs.
bool handles_transposed(const Call& call) {
  for (const Axis& a : call.plan->axis) {
    if (!a.regular() || a.stride > 1 || (a.m == 1 && a.kernel > 1)) return false;
  }
  return true;
}
bool handles_transposed_van_herk_2d(const Call& call) {
  const Plan& p = *call.plan;
  return handles_transposed(call) &&
         handles_van_herk_2d(transposed(p.axis[0]), transposed(p.axis[1]), transposed(p.axis[2]),
                             p.taps);
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
bool prefers_channels_last(const Call& call) { return shares_little(*call.plan); }
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

// For few taps, vector comparisons cost less than scalar additions at computed addresses.
bool prefers_gather_of_routes(const Call& call) {
  const Plan& p = *call.plan;
  const Axis& width = p.axis[2];
  return p.inner == 1 && p.taps <= 5 && width.stride <= 2 &&
         width.in >= 4 * lanes(call, summed_bytes(call.input.dtype));
}

bool prefers_van_herk_2d(const Axis& height) {
  return shares_much(height) && 4 * height.stride <= height.kernel;
}
bool prefers_van_herk_2d(const Call& call) { return prefers_van_herk_2d(call.plan->axis[1]); }
bool prefers_transposed_van_herk_2d(const Call& call) {
  return prefers_van_herk_2d(transposed(call.plan->axis[1]));
}

// Whether there is a vector of planes for each thread.
bool has_many_planes(const Call& call) {
  return call.plan->outer >= lanes(call, sizeof(float)) * call.threads;
}
// Whether vectors along a row would leave more than a quarter of their lanes idle.
bool prefers_transposed_planes(const Call& call) {
  const i64 planes = lanes(call, sizeof(float)), n = call.plan->axis[2].out;
  const i64 used = ceil_div(n, planes) * planes;
  return has_many_planes(call) && prefers_van_herk_2d(call) && 4 * (used - n) > used;
}
// Whether vectors along a row would leave at least half of their lanes idle.
bool prefers_transposed_tiny_planes(const Call& call) {
  const Plan& p = *call.plan;
  constexpr i64 kFewTaps = 4;
  return has_many_planes(call) && 2 * p.axis[2].out <= lanes(call, sizeof(float)) &&
         p.axis[1].stride == 1 && p.taps > kFewTaps;
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
    {Task::extreme, A::transposed_planes, handles_transposed_planes,
     prefers_transposed_tiny_planes},
    {Task::extreme, A::register_blocked, handles_register_blocked_extreme, always},
    {Task::extreme, A::register_blocked_channels_last, handles_channels_last_extreme,
     prefers_channels_last},
    {Task::extreme, A::unrolled_joined_rows, handles_joined_rows, prefers_joined_rows},
    {Task::extreme, A::unrolled, handles_unrolled_extreme, prefers_unrolled},
    {Task::extreme, A::transposed_planes, handles_transposed_planes, prefers_transposed_planes},
    {Task::extreme, A::van_herk_2d, handles_van_herk_2d_extreme, prefers_van_herk_2d},
    {Task::extreme, A::separable, always, always},

    {Task::median, A::sorting_network, handles_sorting_network, always},
    {Task::median, A::sliding_ranks, always, always},
    {Task::draw, A::copied_windows, always, always},

    {Task::average, A::plane_means, handles_plane_means, always},
    {Task::average, A::register_blocked, handles_register_blocked_average,
     prefers_unrolled_average},
    {Task::average, A::register_blocked_channels_last, handles_channels_last_average,
     prefers_unrolled_average},
    {Task::average, A::unrolled, handles_unrolled, prefers_unrolled_average},
    {Task::average, A::van_herk_2d, handles_van_herk_2d, prefers_van_herk_2d},
    {Task::average, A::column_sums, handles_column_sums, prefers_column_sums},
    {Task::average, A::separable, always, always},

    {Task::nonlinear, A::unrolled, handles_unrolled_nonlinear, always},
    {Task::nonlinear, A::copied_windows, always, always},

    {Task::routes_backward, A::register_blocked_backward, handles_register_blocked_backward,
     always},
    {Task::routes_backward, A::register_blocked_channels_last_backward,
     handles_channels_last_backward, always},
    {Task::routes_backward, A::gather, handles_gather_of_routes, prefers_gather_of_routes},
    {Task::routes_backward, A::scatter_routes, always, always},

    {Task::average_backward, A::plane_gradients, handles_plane_gradients, always},
    {Task::average_backward, A::register_blocked_backward,
     handles_register_blocked_average_backward, always},
    {Task::average_backward, A::gather, handles_gather_of_averages, always},
    {Task::average_backward, A::transposed_van_herk_2d, handles_transposed_van_herk_2d,
     prefers_transposed_van_herk_2d},
    {Task::average_backward, A::transposed_separable, handles_transposed, always},
    {Task::average_backward, A::scatter_equal_shares, always, always},

    {Task::weights_backward, A::scatter_weights, always, always},
};

constexpr const char* kNames[kAlgorithms] = {
    "plane_means",
    "unrolled",
    "unrolled_joined_rows",
    "register_blocked",
    "register_blocked_channels_last",
    "van_herk_2d",
    "transposed_planes",
    "column_sums",
    "separable",
    "copied_windows",
    "sorting_network",
    "sliding_ranks",
    "plane_gradients",
    "register_blocked_backward",
    "register_blocked_channels_last_backward",
    "gather",
    "transposed_van_herk_2d",
    "transposed_separable",
    "scatter_routes",
    "scatter_equal_shares",
    "scatter_weights",
};

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
