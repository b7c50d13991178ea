// Defines the Python module `_kernels`. src/poolgrad validates arguments; the checks in this folder
// guard memory.
#include "base/buffer_cache.hpp"
#include "bindings/python/bound_regions.hpp"
#include "bindings/python/call_cache.hpp"
#include "bindings/python/plan.hpp"
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

}  // namespace

NB_MODULE(_kernels_of_main, m) {
  m.doc() = "poolgrad's compiled kernels; see poolgrad.core.";
  nb::set_leak_warnings(false);  // the call cache holds plans until the process ends
  m.def("instruction_set", [] { return std::string(chosen_kernels().name); });
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  m.def("algorithms", [] {
    std::vector<std::string> names;
    names.reserve(kAlgorithms);
    for (int k = 0; k < kAlgorithms; ++k) names.emplace_back(name_of(static_cast<Algorithm>(k)));
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
  // Python's error is set when Interrupted is thrown, see WithoutGil.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Interrupted&) {
    }
  });
  nb::class_<TensorSpec>(m, "TensorSpec")
      .def(nb::init<nb::type_object, nb::tuple, nb::tuple, nb::tuple, nb::tuple,
                    const std::string&>(),
           nb::arg("type"), nb::arg("parts"), nb::arg("required"), nb::arg("global_state"),
           nb::arg("required_state"), nb::arg("protocol"))
      .def("key", &TensorSpec::key, nb::arg("args"), nb::arg("kwargs"))
      .def("call", &TensorSpec::call, nb::arg("cache"), nb::arg("args"), nb::arg("kwargs"))
      .def("parts", &TensorSpec::parts, nb::arg("array"))
      .def("is_supported", &TensorSpec::is_supported, nb::arg("array"))
      .def("have_parts", &TensorSpec::have_parts, nb::arg("arrays"), nb::arg("parts"))
      .def("call_with", &TensorSpec::call_with, nb::arg("function"), nb::arg("arrays"),
           nb::arg("parts"));
  nb::class_<BoundCalls>(m, "BoundCalls")
      .def(nb::init<nb::tuple, nb::tuple, nb::tuple, nb::object, std::size_t>(), nb::arg("calls"),
           nb::arg("placeholders"), nb::arg("allocators"), nb::arg("threads"), nb::arg("returned"))
      .def("run", &BoundCalls::run);
  nb::class_<BoundPlan>(m, "Plan")
      .def(nb::init<const std::vector<std::vector<i64>>&, const std::vector<i64>&,
                    const std::vector<int>&, int, const std::string&, const std::string&, int>())
      .def("unpack_routes", &BoundPlan::unpack_routes)
      .def("select", &BoundPlan::select, nb::arg("which"), nb::arg("x"), nb::arg("y"),
           nb::arg("routes").none(), nb::arg("zero_ties"), nb::arg("samples").none(),
           nb::arg("threads"))
      .def("draw", &BoundPlan::draw, nb::arg("x"), nb::arg("y"), nb::arg("routes").none(),
           nb::arg("seed"), nb::arg("threads"))
      .def("route_backward", &BoundPlan::route_backward, nb::arg("gy"), nb::arg("routes"),
           nb::arg("gx"), nb::arg("samples").none(), nb::arg("threads"))
      .def("route_jvp", &BoundPlan::route_jvp, nb::arg("t"), nb::arg("routes"), nb::arg("y"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("route_indices", &BoundPlan::route_indices, nb::arg("routes"), nb::arg("indices"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("split_winners", &BoundPlan::split_winners, nb::arg("which"), nb::arg("x"), nb::arg("y"),
           nb::arg("winners"), nb::arg("samples").none(), nb::arg("threads"))
      .def("split_backward", &BoundPlan::split_backward, nb::arg("gy"), nb::arg("winners"),
           nb::arg("gx"), nb::arg("samples").none(), nb::arg("threads"))
      .def("split_jvp", &BoundPlan::split_jvp, nb::arg("t"), nb::arg("winners"), nb::arg("y"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("unpool", &BoundPlan::unpool)
      .def("unpool_backward", &BoundPlan::unpool_backward)
      .def("average", &BoundPlan::average)
      .def("average_backward", &BoundPlan::average_backward)
      .def("mixed", &BoundPlan::mixed, nb::arg("x"), nb::arg("alpha"), nb::arg("count"),
           nb::arg("count_padding"), nb::arg("y"), nb::arg("routes").none(),
           nb::arg("sensitivity").none(), nb::arg("threads"))
      .def("mixed_backward", &BoundPlan::mixed_backward)
      .def("nonlinear", &BoundPlan::nonlinear, nb::arg("which"), nb::arg("x"), nb::arg("theta"),
           nb::arg("count"), nb::arg("y"), nb::arg("residuals"), nb::arg("sensitivity").none(),
           nb::arg("threads"))
      .def("nonlinear_backward", &BoundPlan::nonlinear_backward)
      .def("span", &BoundPlan::span)
      .def("covering", &BoundPlan::covering_outputs)
      .def_prop_ro("taps", &BoundPlan::taps)
      .def_prop_ro("route_bytes", &BoundPlan::route_bytes);
  nb::class_<BoundRegions>(m, "Regions")
      .def(nb::init<const std::vector<i64>&, const std::vector<i64>&, const std::string&,
                    ArraySource, double>(),
           nb::arg("shape"), nb::arg("output_size"), nb::arg("dtype"), nb::arg("boxes"),
           nb::arg("spatial_scale"))
      .def_prop_ro("count", &BoundRegions::count)
      .def("pool", &BoundRegions::pool)
      .def("pool_backward", &BoundRegions::pool_backward)
      .def("pool_gather", &BoundRegions::pool_gather)
      .def("align", &BoundRegions::align)
      .def("align_backward", &BoundRegions::align_backward);
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
