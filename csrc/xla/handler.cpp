// One handler for all kernels. What a call is, is told in words: the kernel, the plan, and where
// each argument comes from, so that a compiled program can be stored and run by another process.
#include "xla/handler.hpp"

#ifndef POOLGRAD_XLA

nanobind::object poolgrad::xla_handler() { return nanobind::none(); }

#else

#include <sys/mman.h>

#include <cfenv>
#include <charconv>
#include <cstring>
#include <sstream>
#include <tuple>
#include <utility>

#include "python/plan.hpp"
#include "xla/ffi/api/ffi.h"

namespace poolgrad {
namespace {

namespace ffi = xla::ffi;

// Memory that was just taken from the system comes in pages, large ones if they are asked for, and
// these cost a third of the time.
void prefer_large_pages(const Held& held) {
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t page = std::uintptr_t{1} << 21;
  const auto bytes = static_cast<std::uintptr_t>(held.elements() * held.itemsize);
  const auto begin = reinterpret_cast<std::uintptr_t>(held.data);
  const std::uintptr_t first = (begin + page - 1) / page * page,
                       last = (begin + bytes) / page * page;
  unsigned char there = 0;  // what was used before is not asked for again
  if (first < last && mincore(reinterpret_cast<void*>(last - page), 1, &there) == 0 && !there) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#else
  static_cast<void>(held);
#endif
}

// XLA's threads take subnormal numbers for zeros; a maximum of such numbers is one of them.
class PlainArithmetic {
 public:
  PlainArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  PlainArithmetic(const PlainArithmetic&) = delete;
  PlainArithmetic& operator=(const PlainArithmetic&) = delete;
  ~PlainArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

Held held(const ffi::AnyBuffer& buffer, bool is_result) {
  const auto shape = buffer.dimensions();
  return {static_cast<char*>(buffer.untyped_data()),
          static_cast<i64>(ffi::ByteWidth(buffer.element_type())),
          {shape.begin(), shape.end()},
          is_result};
}

// A stored program may give XLA permission to place a result in the memory of an operand.
void require_apart(const std::vector<Held>& results, const std::vector<Held>& operands) {
  const auto end = [](const Held& held) { return held.data + held.elements() * held.itemsize; };
  const auto overlap = [&](const Held& a, const Held& b) {
    return &a != &b && a.data < end(b) && b.data < end(a);
  };
  for (const Held& result : results) {
    for (const std::vector<Held>* others : {&results, &operands}) {
      for (const Held& other : *others) {
        if (overlap(result, other)) throw std::invalid_argument("a result overlaps another array");
      }
    }
  }
}

// A whole word as a number; out of range is an error, too.
template <class T>
T parsed(std::string_view word) {
  T number{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) {
    throw std::invalid_argument("not a number: " + std::string(word));
  }
  return number;
}

// The words of a call and the memory that they speak of: "<0" is the first operand, ">0" the first
// result, "-" nothing, "[2" a list of the next two, "*" the number of threads.
class Words {
 public:
  Words(std::string_view words, std::vector<Held> operands, std::vector<Held> results, int threads)
      : words_(std::string(words)),
        operands_(std::move(operands)),
        results_(std::move(results)),
        threads_(threads) {}

  std::string next() {
    std::string word;
    if (!(words_ >> word)) throw std::invalid_argument("a call has too few words");
    return word;
  }

  const Held& next_held() { return held_named(next()); }

  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, Source>) {
      return named(next());
    } else if constexpr (std::is_same_v<T, std::vector<Source> >) {
      const std::string word = next();
      const auto length = word[0] == '[' ? parsed<std::size_t>(word.substr(1)) : kMostKept + 1;
      if (length > kMostKept) throw std::invalid_argument("no such list: " + word);
      std::vector<Source> list(length);
      for (Source& source : list) source = named(next());
      return list;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return next();
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      return number_at(next());
    } else {
      const std::string word = next();
      if (word == "*") return static_cast<T>(threads_);
      if constexpr (std::is_same_v<T, bool>) return parsed<int>(word) != 0;
      else return parsed<T>(word);
    }
  }

  void require_end() {
    std::string word;
    if (words_ >> word) throw std::invalid_argument("a call has too many words");
  }

 private:
  Source named(const std::string& word) const {
    if (word == "-") return {};
    const std::vector<Held>& from = word[0] == '<' ? operands_ : results_;
    const auto index = parsed<std::size_t>(word.substr(1));
    if ((word[0] != '<' && word[0] != '>') || index >= from.size()) {
      throw std::invalid_argument("no such array: " + word);
    }
    return Source(from[index]);
  }

  const Held& held_named(const std::string& word) const {
    const Held* held = named(word).held();
    if (!held) throw std::invalid_argument("a call lacks an array");
    return *held;
  }

  // Of 64 bits, in two halves, the lower one first.
  std::uint64_t number_at(const std::string& word) const {
    const Held& held = held_named(word);
    if (held.shape != std::vector<i64>{2} || held.itemsize != 4) {
      throw std::invalid_argument("a seed must have two halves");
    }
    std::uint32_t halves[2];
    std::memcpy(halves, held.data, sizeof halves);
    return halves[0] | std::uint64_t{halves[1]} << 32;
  }

  std::istringstream words_;
  std::vector<Held> operands_, results_;
  int threads_;
};

BoundPlan plan_of(Words& words) {
  const std::vector<i64>& shape = words.next_held().shape;
  const std::string in = words.next(), out = words.next();
  const int bits = words.take<int>(), inner = words.take<int>(), dims = words.take<int>();
  if (dims < 1 || dims > 3) throw std::invalid_argument("1 to 3 axes are pooled");
  std::vector<int> pooled;
  std::vector<std::vector<i64> > axes;
  for (int a = 0; a < dims; ++a) {
    pooled.push_back(words.take<int>());
    axes.emplace_back();
    for (std::size_t k = 0; k < BoundPlan::kMembers; ++k) axes.back().push_back(words.take<i64>());
  }
  BoundPlan plan(axes, shape, pooled, inner, in, out, bits);
  plan.leave_python();
  return plan;
}

// What a parameter of a kernel is kept as until it is called.
template <class T>
struct Kept {
  using type = std::decay_t<T>;
};
template <>
struct Kept<const char*> {
  using type = std::string;
};

template <class T>
const T& given(const T& value) {
  return value;
}
const char* given(const std::string& value) { return value.c_str(); }

template <class... Parameters>
void call(const BoundPlan& plan, void (BoundPlan::*kernel)(Parameters...) const, Words& words) {
  // Braces: from left to right.
  const std::tuple<typename Kept<Parameters>::type...> arguments{
      words.take<typename Kept<Parameters>::type>()...};
  words.require_end();
  std::apply([&](const auto&... each) { (plan.*kernel)(given(each)...); }, arguments);
}

template <auto kernel>
void call(const BoundPlan& plan, Words& words) {
  call(plan, kernel, words);
}

using Call = void (*)(const BoundPlan&, Words&);

Call kernel_named(const std::string& name) {
  static const std::pair<const char*, Call> known[] = {
      {"select", call<&BoundPlan::select>},
      {"draw", call<&BoundPlan::draw>},
      {"route_backward", call<&BoundPlan::route_backward>},
      {"route_follow", call<&BoundPlan::route_follow>},
      {"split_winners", call<&BoundPlan::split_winners>},
      {"split_backward", call<&BoundPlan::split_backward>},
      {"split_follow", call<&BoundPlan::split_follow>},
      {"unpool", call<&BoundPlan::unpool>},
      {"unpool_backward", call<&BoundPlan::unpool_backward>},
      {"average", call<&BoundPlan::average>},
      {"average_backward", call<&BoundPlan::average_backward>},
      {"mixed", call<&BoundPlan::mixed>},
      {"mixed_backward", call<&BoundPlan::mixed_backward>},
      {"curved", call<&BoundPlan::curved>},
      {"curved_backward", call<&BoundPlan::curved_backward>},
  };
  for (const auto& [word, kernel] : known) {
    if (name == word) return kernel;
  }
  throw std::invalid_argument("no such kernel: " + name);
}

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  std::string_view words) {
  try {
    std::vector<Held> operands, results;
    for (std::size_t k = 0; k < args.size(); ++k) {
      operands.push_back(held(args.get<ffi::AnyBuffer>(k).value(), false));
    }
    for (std::size_t k = 0; k < rets.size(); ++k) {
      results.push_back(held(*rets.get<ffi::AnyBuffer>(k).value(), true));
    }
    require_apart(results, operands);
    for (const Held& result : results) prefer_large_pages(result);
    Words told(words, std::move(operands), std::move(results),
               static_cast<int>(pool.num_threads()));
    const PlainArithmetic plain;
    const OwnThreads own;
    const Call kernel = kernel_named(told.next());
    kernel(plan_of(told), told);
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::InvalidArgument(error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(
    handler, handle,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<std::string_view>(
        "words"));

}  // namespace

nb::object xla_handler() { return nb::capsule(reinterpret_cast<void*>(handler)); }

}  // namespace poolgrad

#endif
