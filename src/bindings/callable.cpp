#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "../callable/captured.h"
#include "bindings.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using torch_bridge::Dispatcher;
using torch_bridge::PythonRef;
using torch_bridge::callable::CapturedFunction;
using torch_bridge::callable::Entry;
using torch_bridge::callable::Lifted;
using torch_bridge::callable::ModeGuard;
using torch_bridge::callable::Output;
using torch_bridge::callable::Place;
using torch_bridge::callable::Rebound;
using torch_bridge::callable::Structure;
using torch_bridge::callable::TensorShape;

int traverse_captured(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<CapturedFunction>(self)->traverse(visit, arg) : 0;
}

int clear_captured(PyObject* self) {
  nb::inst_ptr<CapturedFunction>(self)->release();
  return 0;
}

PyType_Slot captured_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_captured)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear_captured)},
                                {0, nullptr}};

/// A Python object whose calls are those of a CapturedFunction, with no Python code in between.
struct EngineCalled {
  PythonRef function;
};

int traverse_called(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) {
    Py_VISIT(nb::inst_ptr<EngineCalled>(self)->function.get());
  }
  return 0;
}

int clear_called(PyObject* self) {
  if (nb::inst_ready(self)) {
    nb::inst_ptr<EngineCalled>(self)->function = {};
  }
  return 0;
}

PyObject* call_called(PyObject* self, PyObject* positional, PyObject* named) noexcept {
  const PythonRef function = nb::inst_ready(self)
                                 ? PythonRef::to(nb::inst_ptr<EngineCalled>(self)->function.get())
                                 : PythonRef();
  if (!function) {
    PyErr_SetString(PyExc_RuntimeError, "a captured callable is called before it has been made");
    return nullptr;
  }
  const PythonRef keywords =
      named == nullptr ? PythonRef::stolen(PyDict_New()) : PythonRef::to(named);
  if (!keywords) {
    return nullptr;
  }
  try {
    return nb::inst_ptr<CapturedFunction>(function.get())->call(positional, keywords.get());
  } catch (const std::exception& error) {  // no Python exception is a C++ one in the engine
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyType_Slot called_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse_called)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_called)},
                              {Py_tp_call, reinterpret_cast<void*>(call_called)},
                              {0, nullptr}};

PythonRef optional(nb::handle object) {
  return object.is_none() ? PythonRef() : PythonRef::to(object.ptr());
}

/// The metadata of a tensor; of None: none.
std::unique_ptr<const TensorShape> shape_of(nb::handle tensor, bool used) {
  if (tensor.is_none()) {
    return nullptr;
  }
  const auto& api = calibrated_api();
  const auto handle = api.handle(tensor.ptr());
  auto shape = std::make_unique<TensorShape>();
  shape->used = used;
  std::int64_t* sizes = nullptr;
  std::int64_t* strides = nullptr;
  const std::int64_t rank = api.dim(tensor.ptr());
  torch_bridge::require(api.get_sizes(handle, &sizes), "the sizes of a tensor");
  torch_bridge::require(api.get_strides(handle, &strides), "the strides of a tensor");
  torch_bridge::require(api.get_device_type(handle, &shape->device_type), "a tensor's device");
  torch_bridge::require(api.get_device_index(handle, &shape->device_index), "a tensor's device");
  shape->dtype = api.dtype(tensor.ptr());
  shape->dimensions = static_cast<std::uint32_t>(rank);
  shape->extents.assign(sizes, sizes + rank);
  shape->extents.insert(shape->extents.end(), strides, strides + rank);
  shape->empty = std::find(sizes, sizes + rank, 0) != sizes + rank;
  shape->emptied = !shape->empty && api.data(tensor.ptr()) == nullptr;
  shape->requires_grad = nb::cast<bool>(tensor.attr("requires_grad"));
  // One element is contiguous wherever it stands.
  shape->may_be_negated = !nb::cast<bool>(tensor.attr("is_contiguous")()) ||
                          nb::cast<std::int64_t>(tensor.attr("numel")()) == 1;
  shape->may_be_conjugated = nb::cast<bool>(tensor.attr("is_complex")());
  return shape;
}

void bind_structure(nb::module_& module) {
  nb::enum_<Place::Kind>(module, "PlaceKind", "See structure.h.")
      .value("ANY", Place::Kind::kAny)
      .value("VALUE", Place::Kind::kValue)
      .value("IS", Place::Kind::kIs)
      .value("SAME", Place::Kind::kSame)
      .value("TUPLE", Place::Kind::kTuple)
      .value("LIST", Place::Kind::kList)
      .value("ITERATED", Place::Kind::kIterated)
      .value("DICT", Place::Kind::kDict)
      .value("INSTANCE", Place::Kind::kInstance)
      .value("VARIABLES", Place::Kind::kVariables)
      .value("ATTRIBUTES", Place::Kind::kAttributes)
      .value("NAMES", Place::Kind::kNames)
      .value("METHODS", Place::Kind::kMethods)
      .value("FUNCTION", Place::Kind::kFunction)
      .value("BYTES", Place::Kind::kBytes)
      .value("REFERENCE", Place::Kind::kReference)
      .value("EMPTY", Place::Kind::kEmpty)
      .value("TENSOR", Place::Kind::kTensor)
      .value("UNREAD", Place::Kind::kUnread)
      .value("GENERATOR", Place::Kind::kGenerator)
      .value("NUMBER", Place::Kind::kNumber);
  module.def(
      "may_stand_in",
      [](const nb::object& one, const nb::object& other) {
        return torch_bridge::callable::may_stand_in(one.ptr(), other.ptr());
      },
      nb::arg("one").none(), nb::arg("other").none(), "See structure.h.");
  nb::class_<Place>(module, "Place", "See structure.h.")
      .def(
          "__init__",
          [](Place* self, Place::Kind kind, std::uint32_t children, std::int32_t number,
             std::int32_t slot, std::int32_t returned, nb::handle object, nb::handle type,
             nb::handle key, nb::handle like, bool used) {
            new (self) Place{.kind = kind,
                             .children = children,
                             .number = number,
                             .slot = slot,
                             .returned = returned,
                             .object = kind == Place::Kind::kValue || kind == Place::Kind::kIs
                                           ? PythonRef::to(object.ptr())
                                           : optional(object),
                             .type = optional(type),
                             .key = optional(key),
                             .shape = shape_of(like, used)};
          },
          nb::arg("kind"), nb::kw_only(), nb::arg("children") = 0, nb::arg("number") = -1,
          nb::arg("slot") = -1, nb::arg("returned") = -1, nb::arg("object") = nb::none(),
          nb::arg("type") = nb::none(), nb::arg("key") = nb::none(), nb::arg("like") = nb::none(),
          nb::arg("used") = true,
          "`like`: a tensor with the metadata that must be there; `used`: see TensorShape.");
}

std::shared_ptr<Entry> entry_of(const nb::list& nodes, const nb::tuple& roots,
                                const std::shared_ptr<ModeGuard>& modes, nb::handle owner) {
  std::vector<Place> tree;
  tree.reserve(nodes.size());
  for (nb::handle node : nodes) {
    tree.push_back(std::move(nb::cast<Place&>(node)));
  }
  return std::make_shared<Entry>(Entry{.structure = Structure(std::move(tree)),
                                       .roots = PythonRef::to(roots.ptr()),
                                       .modes = modes,
                                       .owner = PythonRef::to(owner.ptr())});
}

Output output_of(Output::Kind kind, std::uint32_t index, std::uint32_t children,
                 nb::handle object) {
  return Output{kind, index, children, PythonRef::to(object.ptr())};
}

}  // namespace

void bind_callable(nb::module_& module) {
  bind_structure(module);
  nb::enum_<Output::Kind>(module, "OutputKind", "See captured.h.")
      .value("RESULT", Output::Kind::kResult)
      .value("LEAF", Output::Kind::kLeaf)
      .value("OBJECT", Output::Kind::kObject)
      .value("CONSTANT", Output::Kind::kConstant)
      .value("TUPLE", Output::Kind::kTuple)
      .value("LIST", Output::Kind::kList)
      .value("DICT", Output::Kind::kDict)
      .value("MADE", Output::Kind::kMade);
  using Questions = std::vector<std::tuple<nb::object, nb::object, nb::object>>;
  nb::class_<ModeGuard>(module, "ModeGuard",
                        "Whether torch's modes are those of before; see mode_guard.h.")
      .def(
          "__init__",
          [](ModeGuard* self, const Questions& questions) {
            std::vector<ModeGuard::Question> kept;
            for (const auto& [function, argument, answer] : questions) {
              kept.push_back(
                  {PythonRef::to(function.ptr()), optional(argument), PythonRef::to(answer.ptr())});
            }
            new (self) ModeGuard(std::move(kept));
          },
          nb::arg("questions"),
          "`questions`: (function, what it is called with or None, what it has answered).")
      .def("__call__", &ModeGuard::holds, "Whether the answers are the same.");
  using Parts = std::vector<std::tuple<Output::Kind, std::uint32_t, std::uint32_t, nb::object>>;
  using Inside = std::vector<std::tuple<std::uint32_t, std::int64_t>>;
  nb::class_<CapturedFunction>(module, "CapturedFunction", nb::type_slots(captured_slots),
                               "Serves the calls of an EngineCalled; see captured.h.")
      .def(
          "__init__",
          [](CapturedFunction* self, nb::handle miss, nb::handle count_up, nb::handle set_asked) {
            new (self) CapturedFunction(miss.ptr(), count_up.ptr(), optional(set_asked).get());
          },
          nb::arg("miss"), nb::arg("count_up"), nb::arg("set_asked") = nb::none())
      .def(
          "add",
          [](CapturedFunction& self, const nb::list& nodes, const nb::tuple& roots,
             const std::shared_ptr<ModeGuard>& modes,
             const std::vector<std::tuple<std::uint32_t, Inside, nb::object>>& arguments,
             const std::vector<std::tuple<std::uint32_t, std::int32_t, bool, nb::object>>& rebound,
             std::vector<std::uint32_t> written, const Parts& output, nb::handle dispatcher,
             nb::handle owner, bool once_decided) {
            const auto entry = entry_of(nodes, roots, modes, owner);
            entry->once_decided = once_decided;
            entry->written = std::move(written);
            entry->graph = PythonRef::to(dispatcher.ptr());
            entry->dispatcher = &nb::cast<Dispatcher&>(dispatcher);
            for (const auto& [leaf, inside, object] : arguments) {
              Lifted& argument = entry->arguments.emplace_back();
              argument.leaf = leaf;
              argument.object = optional(object);
              for (const auto& [other, offset] : inside) {
                argument.inside.push_back({other, offset});
              }
            }
            for (const auto& [slot, result, given_up, whole] : rebound) {
              entry->rebound.push_back({slot, result, given_up, optional(whole)});
            }
            for (const auto& [kind, index, children, object] : output) {
              entry->output.push_back(output_of(kind, index, children, object));
            }
            self.add(entry);
          },
          nb::arg("nodes"), nb::arg("roots"), nb::arg("modes"), nb::arg("arguments"),
          nb::arg("rebound"), nb::arg("written"), nb::arg("output"), nb::arg("dispatcher"),
          nb::arg("owner"), nb::arg("once_decided") = false,
          "The calls that `nodes` admit are `dispatcher`'s. Takes the nodes over. `roots`: those "
          "behind the positional and the named arguments. `arguments`: per "
          "argument of the graph its leaf, the leaves inside with their offsets in bytes, and "
          "None, "
          "or what it is without memory; "
          "`rebound`: (slot, result, given up, whole), see Rebound; `written`: leaves; `output`: "
          "(kind, "
          "index, children, "
          "object); `once_decided`: not while the dispatcher is undecided.")
      .def(
          "add_as_it_is",
          [](CapturedFunction& self, const nb::list& nodes, const nb::tuple& roots,
             const std::shared_ptr<ModeGuard>& modes, nb::handle function, nb::handle owner) {
            const auto entry = entry_of(nodes, roots, modes, owner);
            entry->as_it_is = PythonRef::to(function.ptr());
            self.add(entry);
          },
          nb::arg("nodes"), nb::arg("roots"), nb::arg("modes"), nb::arg("function"),
          nb::arg("owner"), "The calls that `nodes` admit are `function`'s. Takes the nodes over.")
      .def_prop_ro("shortcuts", &CapturedFunction::shortcuts,
                   "Calls that were admitted without a look at what had not changed "
                   "(unchanged.h).")
      .def_prop_ro("served", &CapturedFunction::served, "Calls that a program has served.")
      .def("remove", [](CapturedFunction& self, nb::handle owner) { self.remove(owner.ptr()); })
      .def(
          "first_mismatch",
          [](const CapturedFunction& self, nb::handle owner, const nb::tuple& positional,
             const nb::dict& named) {
            return self.first_mismatch(owner.ptr(), positional.ptr(), named.ptr());
          },
          nb::arg("owner"), nb::arg("positional"), nb::arg("named"),
          "The first place of the tree of `owner`'s entry that a call does not have, by number; "
          "None: it is admitted.");
  nb::class_<EngineCalled>(module, "EngineCalled", nb::type_slots(called_slots),
                           "Its calls are a CapturedFunction's, with no Python code in between.")
      .def(
          "__init__",
          [](EngineCalled* self, nb::handle function) {
            if (!nb::isinstance<CapturedFunction>(function)) {
              throw nb::type_error("EngineCalled takes a CapturedFunction");
            }
            new (self) EngineCalled{PythonRef::to(function.ptr())};
          },
          nb::arg("function"), nb::sig("def __init__(self, function: CapturedFunction) -> None"));
}

}  // namespace pygraph::bindings
