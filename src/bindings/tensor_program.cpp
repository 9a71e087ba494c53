#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "../torch/random_state.h"
#include "../torch/staging.h"
#include "../torch/tensor_program.h"
#include "../torch/torch_api.h"
#include "bindings.h"
#include "linked.h"
#include "python.h"

namespace nb = nanobind;

namespace pygraph::bindings {

const torch_bridge::TorchApi& calibrated_api() {
  const auto& api = torch_bridge::torch_api();
  if (api.tensor_type == nullptr) {
    throw std::logic_error("calibrate() was not called, or failed: torch's tensors cannot be read");
  }
  return api;
}

namespace {

using torch_bridge::ArenaSpec;
using torch_bridge::Arguments;
using torch_bridge::ArgumentSpec;
using torch_bridge::Draw;
using torch_bridge::FetchedResult;
using torch_bridge::Formula;
using torch_bridge::kOwnDevice;
using torch_bridge::NumberSource;
using torch_bridge::OutputBlock;
using torch_bridge::Peer;
using torch_bridge::ResultSpec;
using torch_bridge::TensorProgram;

/// The dtype of a tensor; of None what a specification has if it is not given any.
std::int32_t dtype_of(nb::handle tensor, std::int32_t none) {
  return tensor.is_none() ? none : calibrated_api().dtype(tensor.ptr());
}

void bind_arguments(nb::module_& module) {
  nb::enum_<ArgumentSpec::Kind>(module, "ArgumentKind")
      .value("PATCHED", ArgumentSpec::Kind::kPatched)
      .value("COPIED", ArgumentSpec::Kind::kCopied)
      .value("FIXED", ArgumentSpec::Kind::kFixed)
      .value("INTEGER", ArgumentSpec::Kind::kInteger)
      .value("NUMBER", ArgumentSpec::Kind::kNumber)
      .value("GENERATOR", ArgumentSpec::Kind::kGenerator)
      .value("HOST_NUMBER", ArgumentSpec::Kind::kHostNumber)
      .value("OBJECT", ArgumentSpec::Kind::kObject)
      .value("IGNORED", ArgumentSpec::Kind::kIgnored);
  nb::class_<ArgumentSpec>(module, "ArgumentSpec", "See tensor_program.h.")
      .def(
          "__init__",
          [](ArgumentSpec* self, ArgumentSpec::Kind kind, std::uint32_t region,
             std::uint64_t alignment_mask, std::uint64_t address, std::uint64_t bytes,
             std::int64_t value, nb::handle number, bool floating, bool mutated, bool guarded,
             bool spent, bool elsewhere, bool staged, const std::vector<Formula>& computed,
             std::int64_t storage_offset, std::uint64_t front, std::optional<std::int32_t> device) {
            new (self) ArgumentSpec{.kind = kind,
                                    .region = region,
                                    .alignment_mask = alignment_mask,
                                    .address = address,
                                    .bytes = bytes,
                                    .value = value,
                                    .dtype = dtype_of(number, ArgumentSpec{}.dtype),
                                    .device = device.value_or(kOwnDevice),
                                    .floating = floating,
                                    .mutated = mutated,
                                    .guarded = guarded,
                                    .elsewhere = elsewhere,
                                    .staged = staged,
                                    .computed = computed,
                                    .storage_offset = storage_offset,
                                    .front = front,
                                    .spent_after = spent ? 0 : ArgumentSpec{}.spent_after};
          },
          nb::kw_only(), nb::arg("kind"), nb::arg("region") = ArgumentSpec{}.region,
          nb::arg("alignment_mask") = ArgumentSpec{}.alignment_mask,
          nb::arg("address") = ArgumentSpec{}.address, nb::arg("bytes") = ArgumentSpec{}.bytes,
          nb::arg("value") = ArgumentSpec{}.value, nb::arg("dtype_of") = nb::none(),
          nb::arg("floating") = ArgumentSpec{}.floating,
          nb::arg("mutated") = ArgumentSpec{}.mutated, nb::arg("guarded") = ArgumentSpec{}.guarded,
          nb::arg("spent") = false, nb::arg("elsewhere") = ArgumentSpec{}.elsewhere,
          nb::arg("staged") = ArgumentSpec{}.staged, nb::arg("computed") = ArgumentSpec{}.computed,
          nb::arg("storage_offset") = ArgumentSpec{}.storage_offset,
          nb::arg("front") = ArgumentSpec{}.front, nb::arg("device") = nb::none(),
          "`dtype_of`: a tensor. `spent`: the call may let go of the argument early. `device`:\n"
          "torch's index of a peer, whose memory the tensor is in; None: the graph's own.")
      .def_ro("kind", &ArgumentSpec::kind)
      .def_ro("region", &ArgumentSpec::region)
      .def_ro("alignment_mask", &ArgumentSpec::alignment_mask)
      .def_ro("address", &ArgumentSpec::address)
      .def_ro("bytes", &ArgumentSpec::bytes)
      .def_ro("value", &ArgumentSpec::value)
      .def_ro("floating", &ArgumentSpec::floating)
      .def_ro("mutated", &ArgumentSpec::mutated)
      .def_ro("guarded", &ArgumentSpec::guarded)
      .def_ro("elsewhere", &ArgumentSpec::elsewhere)
      .def_ro("staged", &ArgumentSpec::staged)
      .def_ro("storage_offset", &ArgumentSpec::storage_offset)
      .def_ro("front", &ArgumentSpec::front);
}

void bind_results(nb::module_& module) {
  nb::class_<OutputBlock>(module, "OutputBlock", "See tensor_program.h.")
      .def(
          "__init__",
          [](OutputBlock* self, std::uint64_t bytes, const std::vector<std::uint32_t>& regions,
             std::uint64_t source, std::optional<std::int32_t> device) {
            std::vector<OutputBlock::Placed> placed;
            placed.reserve(regions.size());
            for (const std::uint32_t region : regions) {
              placed.push_back({region, 0});
            }
            new (self) OutputBlock{.regions = std::move(placed),
                                   .bytes = bytes,
                                   .source = source,
                                   .device = device.value_or(kOwnDevice)};
          },
          nb::kw_only(), nb::arg("bytes"), nb::arg("regions") = std::vector<std::uint32_t>(),
          nb::arg("source") = 0, nb::arg("device") = nb::none(),
          "`regions` of the graph begin where the block does. `device`: torch's index of a peer;\n"
          "None: the graph's own.")
      .def_ro("bytes", &OutputBlock::bytes)
      .def_ro("source", &OutputBlock::source);
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
      .def(
          "__init__",
          [](ResultSpec* self, nb::handle object, ResultSpec::Kind kind, std::uint32_t index,
             std::int64_t byte_offset, std::int64_t value, std::uint64_t bytes,
             std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides, bool strided,
             nb::handle tensor) {
            const bool none = object.is_none() && kind != ResultSpec::Kind::kConstant;
            new (self) ResultSpec{.kind = kind,
                                  .index = index,
                                  .dtype = dtype_of(tensor, ResultSpec{}.dtype),
                                  .byte_offset = byte_offset,
                                  .value = value,
                                  .bytes = bytes,
                                  .strided = strided,
                                  .sizes = std::move(sizes),
                                  .strides = std::move(strides),
                                  .object = none ? nullptr : object.ptr()};
          },
          nb::keep_alive<1, 2>(), nb::kw_only(), nb::arg("object") = nb::none(), nb::arg("kind"),
          nb::arg("index") = ResultSpec{}.index, nb::arg("byte_offset") = ResultSpec{}.byte_offset,
          nb::arg("value") = ResultSpec{}.value, nb::arg("bytes") = ResultSpec{}.bytes,
          nb::arg("sizes") = ResultSpec{}.sizes, nb::arg("strides") = ResultSpec{}.strides,
          nb::arg("strided") = ResultSpec{}.strided, nb::arg("dtype_of") = nb::none(),
          "`dtype_of`: a tensor.")
      .def_ro("kind", &ResultSpec::kind)
      .def_ro("index", &ResultSpec::index)
      .def_ro("byte_offset", &ResultSpec::byte_offset)
      .def_ro("value", &ResultSpec::value)
      .def_ro("bytes", &ResultSpec::bytes)
      .def_ro("sizes", &ResultSpec::sizes)
      .def_ro("strides", &ResultSpec::strides);
}

void bind_fetched(nb::module_& module) {
  nb::class_<FetchedResult>(module, "FetchedResult", "See tensor_program.h.")
      .def(
          "__init__",
          [](FetchedResult* self, std::uint32_t index, std::uint64_t bytes,
             std::vector<std::int64_t> sizes, std::vector<std::int64_t> strides,
             nb::handle tensor) {
            new (self) FetchedResult{.index = index,
                                     .dtype = calibrated_api().dtype(tensor.ptr()),
                                     .bytes = bytes,
                                     .sizes = std::move(sizes),
                                     .strides = std::move(strides)};
          },
          nb::kw_only(), nb::arg("index"), nb::arg("bytes"), nb::arg("sizes"), nb::arg("strides"),
          nb::arg("dtype_of"), "`dtype_of`: a tensor.")
      .def_ro("index", &FetchedResult::index)
      .def_ro("bytes", &FetchedResult::bytes);
}

void bind_draws(nb::module_& module) {
  nb::class_<Draw>(module, "Draw", "See tensor_program.h.")
      .def(
          "__init__",
          [](Draw* self, std::uint32_t seed, std::uint32_t offset, std::int64_t increment,
             std::uint32_t argument) {
            new (self) Draw{.seed_region = seed,
                            .offset_region = offset,
                            .increment = increment,
                            .argument = argument};
          },
          nb::kw_only(), nb::arg("seed_region"), nb::arg("offset_region") = Draw{}.offset_region,
          nb::arg("increment") = Draw{}.increment, nb::arg("argument") = Draw{}.argument)
      .def_ro("seed_region", &Draw::seed_region)
      .def_ro("offset_region", &Draw::offset_region)
      .def_ro("increment", &Draw::increment)
      .def_ro("argument", &Draw::argument);
}

/// The scratch of each call of a linked graph.
ArenaSpec arena_of(const LinkedGraph& graph, const std::vector<int>& peers) {
  ArenaSpec arena;
  arena.region = graph.arena;
  for (std::size_t i = 0; i < graph.pieces().size() && graph.layout.bytes != 0; ++i) {
    const std::uint32_t device = graph.layout.devices[i];
    arena.pieces.push_back({graph.pieces()[i], graph.spans[i].first, graph.spans[i].last,
                            device == 0 ? kOwnDevice : peers.at(device - 1)});
  }
  return arena;
}

std::vector<Peer> peers_of(const Driver& driver, const std::vector<int>& indices) {
  const std::vector<CUcontext> contexts = primary_contexts(driver, indices);
  std::vector<Peer> peers;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    peers.push_back({indices[i], contexts[i]});
  }
  return peers;
}

/// Notes the part behind which a call lets go of what is spent, and in front of which it takes its
/// blocks.
void number_parts(const LinkedGraph& graph, std::vector<ArgumentSpec>& arguments,
                  std::vector<OutputBlock>& blocks) {
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
}

}  // namespace

void bind_tensor_program(nb::module_& module) {
  module.def(
      "calibrate",
      [](nb::handle tensor, std::uint64_t cdata, std::uint64_t storage_cdata,
         std::uint64_t data_ptr, nb::handle type) {
        return torch_bridge::calibrate(tensor.ptr(), cdata, storage_cdata, data_ptr, type.ptr());
      },
      nb::arg("tensor"), nb::arg("cdata"), nb::arg("storage_cdata"), nb::arg("data_ptr"),
      nb::arg("tensor_type"),
      "Finds torch's functions and the layout of a tensor object. Returns '' or what is missing.");
  module.def(
      "calibrate_metadata",
      [](const std::vector<std::pair<nb::object, std::uint64_t>>& samples) {
        std::vector<torch_bridge::MetadataSample> given;
        given.reserve(samples.size());
        for (const auto& [tensor, keys] : samples) {
          given.push_back({tensor.ptr(), keys});
        }
        torch_bridge::calibrate_metadata(given);
        return torch_bridge::torch_api().metadata_bytes;
      },
      nb::arg("samples"),
      "Finds the metadata of tensors in one piece of memory, with tensors and their dispatch keys. "
      "Returns how many bytes that are, or 0.");
  module.def("cuda_api_present", &torch_bridge::cuda_api_present);
  module.def(
      "data_pointer",
      [](nb::handle tensor) {
        return reinterpret_cast<std::uint64_t>(  // NOLINT
            torch_bridge::torch_api().data(tensor.ptr()));
      },
      "The address of a tensor's first element, the way the host path reads it.");
  module.def(
      "requires_grad",
      [](nb::handle tensor) { return torch_bridge::torch_api().requires_grad(tensor.ptr()); },
      "Whether a tensor requires grad, the way the host path reads it.");
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
  module.def("release_staging", &torch_bridge::release_staging,
             "Gives the pinned memory back that values cross between host and device in.");
  bind_arguments(module);
  bind_results(module);
  bind_fetched(module);
  bind_draws(module);

  // The object registers the type and is not needed any more.
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<torch_bridge::MemoryShort>(module, "MemoryShort", PyExc_MemoryError);
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<torch_bridge::MemoryShortAfterLaunch>(module, "MemoryShortAfterLaunch",
                                                      PyExc_MemoryError);

  nb::class_<TensorProgram>(module, "TensorProgram", "One linked graph, called with tensors.")
      .def_static(
          "make",
          [](Linked& linked, bool twin, int device_index, std::vector<ArgumentSpec> arguments,
             std::vector<OutputBlock> blocks, std::vector<ResultSpec> results,
             std::vector<FetchedResult> fetched, std::vector<Draw> draws, nb::handle generator,
             std::vector<std::uint32_t> unwritten, std::vector<NumberSource> numbers,
             const std::vector<int>& peers) {
            (void)calibrated_api();
            number_parts(linked.graph, arguments, blocks);
            return std::make_shared<TensorProgram>(TensorProgram::Specification{
                .driver = *linked.driver,
                .program = Chain(linked.take_programs()),
                .device = twin ? TensorProgram::Device::kTwin : TensorProgram::Device::kCuda,
                .device_index = device_index,
                .peers = peers_of(*linked.driver, peers),
                .arguments = std::move(arguments),
                .blocks = std::move(blocks),
                .results = std::move(results),
                .fetched = std::move(fetched),
                .arena = arena_of(linked.graph, peers),
                .random = {.generator = generator.is_none() ? nullptr : generator.ptr(),
                           .draws = std::move(draws)},
                .numbers = std::move(numbers),
                .unwritten = std::move(unwritten)});
          },
          nb::arg("linked"), nb::kw_only(), nb::arg("twin"), nb::arg("device_index"),
          nb::arg("arguments"), nb::arg("blocks"), nb::arg("results"),
          nb::arg("fetched") = std::vector<FetchedResult>(), nb::arg("draws") = std::vector<Draw>(),
          nb::arg("generator") = nb::none(), nb::arg("unwritten") = std::vector<std::uint32_t>(),
          nb::arg("numbers") = std::vector<NumberSource>(), nb::arg("peers") = std::vector<int>(),
          "Instantiates `linked` and makes it callable. `draws`: of the generators that it draws "
          "from. `generator` is the device's default one, needed if there is any. `unwritten`: "
          "results, by number, that nobody writes. `numbers`: per host number that was linked the "
          "argument that it is, or the formula that it follows from. `peers`: the other devices "
          "that "
          "it works on.")
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
      .def_prop_ro("unwritten", &TensorProgram::unwritten,
                   "Results, by number, that nobody writes.")
      .def_prop_ro("copyable", &TensorProgram::copyable,
                   "Per argument how many nodes mention it, if it may be copied; else 0.")
      .def("copy_arguments", &TensorProgram::copy_arguments, nb::arg("indices"),
           "From now on these, and no others, are copied in place of being patched.")
      .def("reset_statistics", &TensorProgram::reset_statistics)
      .def("note_saved", &TensorProgram::note_saved, nb::arg("results"),
           "These go to a backward and to nobody else.")
      .def("merge_blocks", &TensorProgram::merge_blocks, nb::arg("groups"))
      .def("set_least_arena", &TensorProgram::set_least_arena, nb::arg("bytes"))
      .def_prop_ro("least_arena", &TensorProgram::least_arena)
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
      .def_prop_ro("bytes_staged",
                   [](const TensorProgram& self) { return self.statistics().bytes_staged; })
      .def_prop_ro("bytes_fetched",
                   [](const TensorProgram& self) { return self.statistics().bytes_fetched; })
      .def_prop_ro("updates", [](const TensorProgram& self) { return self.updates(); });
}

}  // namespace pygraph::bindings
