// Defines the Python module `_kernels`. src/poolgrad validates arguments; the checks in this folder
// guard memory.
#include "base/buffer_cache.hpp"
#include "bindings/plan.hpp"
#include "bindings/python/call_cache.hpp"
#include "bindings/python/gil.hpp"
#include "bindings/regions.hpp"
#include "choose.hpp"

namespace poolgrad {

// bindings/xla/handler.cpp: the handlers of the stages of a call ("instantiate", "execute") as
// capsules in a dict, for jax.ffi.register_ffi_target; None where this was built without XLA's
// headers.
nb::object xla_handler();

namespace {

int block_buffer(PyObject* self, Py_buffer* view, int flags) {
  if (!nb::inst_ready(self)) {  // made by __new__ alone, as copy.copy does
    PyErr_SetString(PyExc_BufferError, "the block is not initialised");
    view->obj = nullptr;
    return -1;
  }
  const CachedBlock* block = nb::inst_ptr<CachedBlock>(self);
  return PyBuffer_FillInfo(view, self, block->data(), static_cast<Py_ssize_t>(block->bytes()), 0,
                           flags);
}

PyType_Slot block_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(block_buffer)},
    {0, nullptr},
};

// Adds a kernel as a method. The GIL is released, unless that would take longer than the kernel.
template <class Self, class... Parameters>
void add_kernel(nb::class_<Self>& type, const char* name,
                void (Self::*kernel)(Parameters...) const) {
  type.def(name, [kernel](const Self& self, Parameters... arguments) {
    const WithoutGil released(self.is_long());
    (self.*kernel)(arguments...);
  });
}

// The windows along depth, height or width.
const Axis& axis_of(const BoundPlan& self, std::size_t axis) {
  const bool exists = axis <= 2 && self.plan().pooled_axes[axis] >= 0;
  require(exists && !self.plan().axis[axis].fractional, "no such axis");
  return self.plan().axis[axis];
}

}  // namespace

NB_MODULE(_kernels_of_main, m) {
  m.doc() = "poolgrad's compiled kernels; see poolgrad.core.";
  nb::set_leak_warnings(false);  // the call cache holds plans until the process ends
  m.def("instruction_set", [] { return std::string(chosen_kernels().name); });
  m.def("instruction_sets", [] {
    nb::list names;
    for (const Kernels* k : available_kernels()) names.append(k->name);
    return names;
  });
  m.def("algorithms", [] {
    nb::list names;
    for (int k = 0; k < kAlgorithms; ++k) names.append(name_of(static_cast<Algorithm>(k)));
    return names;
  });
  m.def("force_algorithm", [](const std::string& name) {
    require(force_algorithm(name.c_str()), ("no algorithm is called " + name).c_str());
  });
  m.def("trace", [](const nb::callable& call, bool dry) {
    const Trace trace(dry);
    call();
    nb::list choices;
    for (int i = 0; i < trace.size(); ++i) {
      const auto& [algorithm, count] = trace[i];
      choices.append(nb::make_tuple(name_of(algorithm), count.tasks, count.threads));
    }
    return choices;
  });
  nb::class_<CachedBlock>(m, "CachedBlock", nb::type_slots(block_slots))
      .def(nb::init<std::size_t>());
  m.def("limit_cache", &limit_cache);
  m.def("empty_cache", &empty_cache);
  m.def("advise_huge_pages", [](std::uintptr_t address, std::size_t size) {
    advise_huge_pages(reinterpret_cast<char*>(address), size);
  });
  m.def("cache_use", [] {
    const CacheUse use = cache_use();
    return nb::make_tuple(use.used, use.kept);
  });
  m.def("limit_nontemporal_stores", &limit_nontemporal_stores);
  m.def("share_threads", [](const char* library) {
    const WithoutGil released;  // share_threads() may wait for a thread that needs the GIL
    return share_threads(library);
  });
  m.def("xla_handler", &xla_handler);
  nb::class_<TensorSpec>(m, "TensorSpec")
      .def(nb::init<nb::type_object, TensorSpec::Objects, TensorSpec::Requirements,
                    TensorSpec::Objects, TensorSpec::Requirements, const std::string&>(),
           nb::arg("type"), nb::arg("parts"), nb::arg("required"), nb::arg("global_state"),
           nb::arg("required_state"), nb::arg("protocol"))
      .def("key", &TensorSpec::key)
      .def("call", &TensorSpec::call)
      .def("parts", &TensorSpec::parts)
      .def("is_supported", &TensorSpec::is_supported)
      .def("have_parts", &TensorSpec::have_parts)
      .def("call_with", &TensorSpec::call_with);
  nb::class_<BoundCalls>(m, "BoundCalls")
      .def(nb::init<const BoundCalls::Calls&, nb::tuple, const std::vector<AllocatorParts>&,
                    nb::object, std::size_t>())
      .def("run", &BoundCalls::run);
  nb::class_<BoundPlan> plan(m, "Plan");
  plan.def(nb::init<const std::vector<i64>&, const std::vector<i64>&, i64, i64, i64, i64>())
      .def("span",
           [](const BoundPlan& self, std::size_t axis, i64 output) {
             const Span s = span_of(axis_of(self, axis), output);
             return std::tuple(s.begin, s.first_tap, s.taps, s.extent);
           })
      .def("covering",
           [](const BoundPlan& self, std::size_t axis, i64 input) {
             const Range r = covering(axis_of(self, axis), input);
             return std::pair(r.lo, r.hi);
           })
      .def_prop_ro("taps", [](const BoundPlan& self) { return self.plan().taps; })
      .def_prop_ro("route_bytes", [](const BoundPlan& p) { return size_of(p.route_dtype()); });
  BoundPlan::each_kernel([&](const char* name, auto kernel) { add_kernel(plan, name, kernel); });
  nb::class_<BoundRegions> regions(m, "Regions");
  regions.def(nb::init<const std::vector<i64>&, const std::vector<i64>&, const std::string&, Input,
                       double>(),
              nb::arg("shape"), nb::arg("output_size"), nb::arg("dtype"), nb::arg("boxes"),
              nb::arg("spatial_scale"));
  add_kernel(regions, "pool", &BoundRegions::pool);
  add_kernel(regions, "pool_backward", &BoundRegions::by_indices<true>);
  add_kernel(regions, "pool_gather", &BoundRegions::by_indices<false>);
  add_kernel(regions, "align", &BoundRegions::align<false>);
  add_kernel(regions, "align_backward", &BoundRegions::align<true>);
}

}  // namespace poolgrad

// nanobind's types exist once in a process: an import in a second interpreter would replace those
// of the first.
extern "C" NB_EXPORT PyObject* PyInit__kernels() {  // NOLINT(bugprone-reserved-identifier)
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "poolgrad supports the main interpreter only");
    return nullptr;
  }
  return poolgrad::PyInit__kernels_of_main();
}
