#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "../torch/random_state.h"
#include "../torch/tensor_program.h"
#include "../torch/torch_api.h"
#include "bindings.h"
#include "linked.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using torch_bridge::Arguments;
using torch_bridge::ArgumentSpec;
using torch_bridge::OutputBlock;
using torch_bridge::ResultSpec;
using torch_bridge::TensorProgram;

const torch_bridge::TorchApi& calibrated_api() {
  const auto& api = torch_bridge::torch_api();
  if (api.tensor_type == nullptr) {
    throw std::logic_error("calibrate() was not called, or failed: torch's tensors cannot be read");
  }
  return api;
}

template <typename Spec>
void set_dtype_of(Spec& spec, nb::handle tensor) {
  spec.dtype = calibrated_api().dtype(tensor.ptr());
}

void bind_specs(nb::module_& module) {
  nb::enum_<ArgumentSpec::Kind>(module, "ArgumentKind")
      .value("PATCHED", ArgumentSpec::Kind::kPatched)
      .value("COPIED", ArgumentSpec::Kind::kCopied)
      .value("FIXED", ArgumentSpec::Kind::kFixed)
      .value("INTEGER", ArgumentSpec::Kind::kInteger)
      .value("NUMBER", ArgumentSpec::Kind::kNumber)
      .value("GENERATOR", ArgumentSpec::Kind::kGenerator)
      .value("IGNORED", ArgumentSpec::Kind::kIgnored);
  nb::class_<ArgumentSpec>(module, "ArgumentSpec", "See tensor_program.h.")
      .def(nb::init<>())
      .def_rw("kind", &ArgumentSpec::kind)
      .def_rw("region", &ArgumentSpec::region)
      .def_rw("alignment_mask", &ArgumentSpec::alignment_mask)
      .def_rw("address", &ArgumentSpec::address)
      .def_rw("bytes", &ArgumentSpec::bytes)
      .def_rw("value", &ArgumentSpec::value)
      .def_rw("mutated", &ArgumentSpec::mutated)
      .def_rw("guarded", &ArgumentSpec::guarded)
      .def_rw("spent", &ArgumentSpec::spent_after, "0: the call may let go of it early.")
      .def_rw("elsewhere", &ArgumentSpec::elsewhere)
      .def_rw("storage_offset", &ArgumentSpec::storage_offset)
      .def_rw("front", &ArgumentSpec::front)
      .def("set_dtype_of", &set_dtype_of<ArgumentSpec>, "Takes the dtype of a tensor.");
  nb::class_<OutputBlock>(module, "OutputBlock", "See tensor_program.h.")
      .def(nb::init<>())
      .def(
          "place",
          [](OutputBlock& self, std::uint32_t region, std::uint64_t offset) {
            self.regions.push_back({region, offset});
          },
          nb::arg("region"), nb::arg("offset") = 0,
          "Binds a region of the graph to the block, `offset` bytes behind its start.")
      .def_rw("bytes", &OutputBlock::bytes)
      .def_rw("source", &OutputBlock::source);
  nb::enum_<ResultSpec::Kind>(module, "ResultKind")
      .value("WHOLE", ResultSpec::Kind::kWhole)
      .value("VIEW", ResultSpec::Kind::kView)
      .value("ARGUMENT", ResultSpec::Kind::kArgument)
      .value("ALIAS", ResultSpec::Kind::kAlias)
      .value("SAME", ResultSpec::Kind::kSame)
      .value("DERIVED", ResultSpec::Kind::kDerived)
      .value("NUMBER", ResultSpec::Kind::kNumber)
      .value("CONSTANT", ResultSpec::Kind::kConstant);
  nb::class_<ResultSpec>(module, "ResultSpec", "See tensor_program.h.")
      .def(nb::init<>())
      .def_rw("kind", &ResultSpec::kind)
      .def_rw("index", &ResultSpec::index)
      .def_rw("byte_offset", &ResultSpec::byte_offset)
      .def_rw("value", &ResultSpec::value)
      .def_rw("bytes", &ResultSpec::bytes)
      .def_rw("sizes", &ResultSpec::sizes)
      .def_rw("strides", &ResultSpec::strides)
      .def("set_dtype_of", &set_dtype_of<ResultSpec>, "Takes the dtype of a tensor.");
}

/// See Draw: the regions of seed and offset, the increment, the argument.
using DrawTuple = std::tuple<std::uint32_t, std::uint32_t, std::int64_t, std::uint32_t>;

std::shared_ptr<TensorProgram> make_call(Linked& linked, bool twin, int device_index,
                                         std::vector<ArgumentSpec> arguments,
                                         std::vector<OutputBlock> blocks,
                                         std::vector<ResultSpec> results, const nb::list& objects,
                                         const std::vector<DrawTuple>& draws,
                                         const nb::object& generator) {
  (void)calibrated_api();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const nb::handle object = objects[i];
    results[i].object =
        object.is_none() && results[i].kind != ResultSpec::Kind::kConstant ? nullptr : object.ptr();
  }
  const LinkedGraph& graph = linked.graph;
  torch_bridge::ArenaSpec arena;
  arena.region = graph.arena;
  for (std::size_t i = 0; i < graph.pieces().size() && graph.layout.bytes != 0; ++i) {
    arena.pieces.push_back({graph.pieces()[i], graph.spans[i].first, graph.spans[i].last});
  }
  const std::vector<PartSpan> parts = graph.parts_of_regions();
  for (ArgumentSpec& argument : arguments) {
    if (argument.spent_after >= 0 && argument.region < parts.size()) {
      argument.spent_after = static_cast<std::int32_t>(parts[argument.region].last);
    }
  }
  for (OutputBlock& block : blocks) {
    block.first_part = static_cast<std::uint32_t>(graph.cuts.size());
    for (const OutputBlock::Placed& placed : block.regions) {
      block.first_part = std::min(block.first_part, parts[placed.region].first);
    }
  }
  torch_bridge::RandomSpec random;
  random.generator = generator.is_none() ? nullptr : generator.ptr();
  for (const auto& [seed, offset, increment, argument] : draws) {
    random.draws.push_back({seed, offset, increment, argument});
  }
  return std::make_shared<TensorProgram>(
      *linked.driver, Chain(linked.take_programs()),
      twin ? TensorProgram::Device::kTwin : TensorProgram::Device::kCuda, device_index,
      std::move(arguments), std::move(blocks), std::move(results), std::move(arena),
      std::move(random));
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def(
      "calibrate",
      [](nb::handle tensor, std::uint64_t cdata, std::uint64_t storage_cdata,
         std::uint64_t data_ptr, nb::handle type) {
        return torch_bridge::calibrate(tensor.ptr(), cdata, storage_cdata, data_ptr, type.ptr());
      },
      nb::arg("tensor"), nb::arg("cdata"), nb::arg("storage_cdata"), nb::arg("data_ptr"),
      nb::arg("tensor_type"),
      "Finds torch's functions and the layout of a tensor object. Returns '' or what is missing.");
  module.def("cuda_api_present", &torch_bridge::cuda_api_present);
  module.def(
      "data_pointer",
      [](nb::handle tensor) {
        return reinterpret_cast<std::uint64_t>(  // NOLINT
            torch_bridge::torch_api().data(tensor.ptr()));
      },
      "The address of a tensor's first element, the way the host path reads it.");
  module.attr("NO_REGION") = torch_bridge::kNoRegion;
  module.attr("DEFAULT_GENERATOR") = torch_bridge::Draw::kDefault;
  module.def(
      "twin_generator",
      [](std::uint64_t address) {
        PyObject* generator = torch_bridge::generator_of_calls(address);
        if (generator == nullptr) {
          throw nb::value_error("this is no generator that a call of the twin draws from");
        }
        return nb::borrow(generator);
      },
      nb::arg("address"), "The generator object of a running call that has this address.");
  bind_specs(module);

  // The object registers the type and is not needed any more.
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<torch_bridge::MemoryShort>(module, "MemoryShort", PyExc_MemoryError);
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<torch_bridge::MemoryShortAfterLaunch>(module, "MemoryShortAfterLaunch",
                                                      PyExc_MemoryError);

  nb::class_<TensorProgram>(module, "TensorProgram", "One linked graph, called with tensors.")
      .def_static("make", &make_call, nb::arg("linked"), nb::kw_only(), nb::arg("twin"),
                  nb::arg("device_index"), nb::arg("arguments"), nb::arg("blocks"),
                  nb::arg("results"), nb::arg("objects"),
                  nb::arg("draws") = std::vector<DrawTuple>(), nb::arg("generator") = nb::none(),
                  "Instantiates `linked` and makes it callable. `objects[i]` belongs to result i. "
                  "`draws` are the generators that it draws from: (region of the seed, region of "
                  "the offset or NO_REGION, increment, number of the argument or "
                  "DEFAULT_GENERATOR). `generator` is the device's default one, needed if there is "
                  "any.")
      .def("accepts",
           [](const TensorProgram& self, nb::handle arguments) {
             require_list(arguments);
             return self.accepts(Arguments::of_list(arguments.ptr()));
           })
      .def("moved",
           [](const TensorProgram& self, nb::handle arguments) {
             require_list(arguments);
             return self.moved(Arguments::of_list(arguments.ptr()));
           })
      .def("offsets_differ",
           [](const TensorProgram& self, nb::handle arguments) {
             require_list(arguments);
             return self.offsets_differ(Arguments::of_list(arguments.ptr()));
           })
      .def_prop_ro("without_trace", &TensorProgram::without_trace,
                   "Whether a call whose results nobody gets leaves everything as it was.")
      .def("less_aligned",
           [](const TensorProgram& self, nb::handle arguments) {
             require_list(arguments);
             return self.less_aligned(Arguments::of_list(arguments.ptr()));
           })
      .def_prop_rw("patience", &TensorProgram::patience, &TensorProgram::set_patience,
                   "Calls with arguments that are less aligned than captured, but as kernels ask "
                   "for, that are served by copies before one is refused; negative: all.")
      .def(
          "run",
          [](TensorProgram& self, nb::handle arguments, int poison, std::uint64_t displace) {
            require_list(arguments);
            const Arguments list = Arguments::of_list(arguments.ptr());
            // A proof gives the linked call's own arguments, or copies of them.
            if (poison < 0 && !self.accepts(list)) {
              throw nb::value_error("the arguments are not what this graph was captured with");
            }
            return stolen(self.run(list, {poison, displace}));
          },
          nb::arg("arguments"), nb::arg("poison") = -1, nb::arg("displace") = 0,
          "One call outside the dispatcher; `poison` and `displace` are for proofs (Trial).")
      .def_rw("unwritten", &TensorProgram::unwritten, "Results, by number, that nobody writes.")
      .def("reset_statistics", &TensorProgram::reset_statistics)
      .def("merge_blocks", &TensorProgram::merge_blocks, nb::arg("groups"))
      .def("set_arena_floor", &TensorProgram::set_arena_floor, nb::arg("bytes"))
      .def_prop_ro("arena_floor", &TensorProgram::arena_floor)
      .def_prop_ro(
          "fronts",
          [](const TensorProgram& self) {
            std::vector<std::uint64_t> fronts;
            for (const ArgumentSpec& argument : self.arguments()) {
              fronts.push_back(argument.front);
            }
            return fronts;
          },
          "Of each argument, the bytes in front of it that the graph may address.")
      .def_prop_ro("arena_in_one_piece", &TensorProgram::arena_in_one_piece)
      .def_prop_ro(
          "blocks",
          [](const TensorProgram& self) {
            std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
            for (const OutputBlock& block : self.blocks()) {
              found.emplace_back(block.bytes, block.first_part);
            }
            return found;
          },
          "Per block of results: its bytes, and the part in front of which it is taken.")
      .def_prop_ro(
          "block_of_result",
          [](const TensorProgram& self) {
            std::vector<std::int64_t> found;
            for (const ResultSpec& result : self.results()) {
              const bool inside =
                  result.kind == ResultSpec::Kind::kWhole || result.kind == ResultSpec::Kind::kView;
              found.push_back(inside ? std::int64_t{result.index} : -1);
            }
            return found;
          },
          "Per result the block that it is in, or -1.")
      .def_prop_ro(
          "spent_after",
          [](const TensorProgram& self) {
            std::vector<std::int32_t> found;
            for (const ArgumentSpec& argument : self.arguments()) {
              found.push_back(argument.spent_after);
            }
            return found;
          },
          "Per argument the part behind which the call lets go of it; negative: at the end.")
      .def_prop_ro("replays", [](const TensorProgram& self) { return self.statistics().replays; })
      .def_prop_ro("bytes_copied",
                   [](const TensorProgram& self) { return self.statistics().bytes_copied; })
      .def_prop_ro("copies", [](const TensorProgram& self) { return self.statistics().copies; })
      .def_prop_ro("updates", [](const TensorProgram& self) { return self.updates(); });
}

}  // namespace pygraph::bindings
