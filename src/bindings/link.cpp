#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "../torch/python_number.h"
#include "bindings.h"
#include "linked.h"
#include "pygraph/link.h"

namespace nb = nanobind;

namespace pygraph::bindings {

std::vector<Program> Linked::take_programs() {
  if (!graph.graph) {
    throw std::logic_error("this linked graph was already made into a program");
  }
  if (!graph.table.sound()) {
    throw std::logic_error("the captures could not be linked: " + graph.table.problems.front());
  }
  const std::size_t regions = graph.region_count();
  LinkedGraph taken;
  taken.graph = std::move(graph.graph);
  taken.image = graph.image;
  taken.relocations = graph.relocations;
  taken.numbers = graph.numbers;
  taken.cuts = graph.cuts;
  std::vector<Program> programs;
  for (LinkedPart& part : take_apart(*driver, std::move(taken))) {
    programs.emplace_back(*driver, std::move(part.graph), std::move(part.image), part.relocations,
                          regions, part.numbers, graph.number_count);
  }
  return programs;
}

Program Linked::take_program() {
  std::vector<Program> programs = take_programs();
  if (programs.size() != 1) {
    throw std::logic_error("this graph is cut into parts; there is no one program of it");
  }
  return std::move(programs.front());
}

namespace {

/// A stopwatch, and the driver that it belongs to.
struct TimedLinked {
  const Driver* driver;
  Stopwatch stopwatch;
};

/// Ends the capture on `stream`. A capture that something invalidated gives no graph: the error
/// says so, and the stream is usable again.
std::unique_ptr<CapturedGraph> end_capture(std::uint64_t stream, bool twin) {
  const Driver& driver = choose_driver(twin);
  CUgraph graph = nullptr;
  const CUresult code =
      driver.api.cuStreamEndCapture(reinterpret_cast<CUstream>(stream), &graph);  // NOLINT
  auto captured = std::make_unique<CapturedGraph>(CapturedGraph{GraphHandle(driver, graph)});
  driver.check(code, "cuStreamEndCapture", "the capture stream");
  return captured;
}

NumberValue number_of(nb::handle object) {
  const std::optional<NumberValue> number = torch_bridge::python_number(object.ptr());
  if (!number.has_value()) {
    throw nb::type_error("a host number is a float, or an int of 64 bits");
  }
  return *number;
}

std::ptrdiff_t captured_nodes(std::uint64_t stream, bool twin) {
  const Driver& driver = choose_driver(twin);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  driver.check(
      driver.api.cuStreamGetCaptureInfo(reinterpret_cast<CUstream>(stream),  // NOLINT
                                        &status, nullptr, &graph, nullptr, nullptr, nullptr),
      "cuStreamGetCaptureInfo", "the capture stream");
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return -1;
  }
  std::size_t count = 0;
  if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    driver.check(driver.api.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes",
                 "the graph being captured");
  }
  return static_cast<std::ptrdiff_t>(count);
}

void bind_capture(nb::module_& module) {
  nb::class_<StreamHandle>(module, "Stream", "A CUDA stream of the current context.")
      .def(
          "__init__",
          [](StreamHandle* self, bool twin) {
            const Driver& driver = choose_driver(twin);
            CUstream stream = nullptr;
            driver.check(driver.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                         "cuStreamCreate");
            new (self) StreamHandle(driver, stream);
          },
          nb::arg("twin") = false)
      .def_prop_ro("handle", [](const StreamHandle& self) {
        return reinterpret_cast<std::uint64_t>(self.get());  // NOLINT
      });
  nb::class_<CapturedGraph>(module, "CapturedGraph", "Owner of a captured CUgraph.")
      .def_prop_ro("handle", [](const CapturedGraph& self) {
        return reinterpret_cast<std::uint64_t>(self.graph.get());  // NOLINT
      });
  module.def(
      "begin_capture",
      [](std::uint64_t stream, bool twin) {
        const Driver& driver = choose_driver(twin);
        driver.check(driver.api.cuStreamBeginCapture(reinterpret_cast<CUstream>(stream),  // NOLINT
                                                     CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                     "cuStreamBeginCapture", "the capture stream");
      },
      nb::arg("stream"), nb::arg("twin") = false,
      "Captures what this thread launches on `stream` (thread-local mode).");
  module.def("captured_nodes", &captured_nodes, nb::arg("stream"), nb::arg("twin") = false,
             "How many nodes the capture on `stream` has so far; 0 when there is none, -1 when "
             "something has invalidated it.");
  module.def("end_capture", &end_capture, nb::arg("stream"), nb::arg("twin") = false,
             "Ends the capture and returns its graph. Raises DriverError when it was invalidated.");
}

void bind_request(nb::module_& module) {
  nb::enum_<RegionRole>(module, "RegionRole")
      .value("OWN", RegionRole::kOwn)
      .value("SCRATCH", RegionRole::kScratch)
      .value("FRESH", RegionRole::kFresh)
      .value("SPENT", RegionRole::kSpent);
  nb::class_<LinkRegion>(module, "Region", "See LinkRegion in link.h.")
      .def(
          "__init__",
          [](LinkRegion* self, std::uint64_t in_a, std::uint64_t in_b, std::uint64_t bytes,
             RegionRole role, std::uint64_t used, std::uint64_t allocated, std::uint64_t freed,
             std::uint32_t device) {
            new (self) LinkRegion{.place = {.a = in_a, .b = in_b, .bytes = bytes},
                                  .role = role,
                                  .used_bytes = used,
                                  .times = {.allocated = allocated, .freed = freed},
                                  .device = device};
          },
          nb::kw_only(), nb::arg("in_a"), nb::arg("in_b"), nb::arg("bytes"),
          nb::arg("role") = LinkRegion{}.role, nb::arg("used") = LinkRegion{}.used_bytes,
          nb::arg("allocated") = LinkRegion{}.times.allocated,
          nb::arg("freed") = LinkRegion{}.times.freed, nb::arg("device") = LinkRegion{}.device,
          "`in_a`, `in_b`: its addresses in the two captures. `used`: bytes ever handed out.");
  nb::class_<CopyOut>(module, "Copy", "See CopyOut in link.h.")
      .def(
          "__init__",
          [](CopyOut* self, std::uint32_t region, std::uint64_t offset, std::uint64_t bytes,
             bool fresh) {
            new (self) CopyOut{.region = region, .offset = offset, .bytes = bytes, .fresh = fresh};
          },
          nb::kw_only(), nb::arg("region"), nb::arg("offset"), nb::arg("bytes"), nb::arg("fresh"));
  nb::class_<Touch>(module, "Touch", "See Touch in rethread.h.")
      .def(
          "__init__",
          [](Touch* self, std::uint64_t address, bool writes, std::uint64_t item_bytes,
             const std::vector<std::pair<std::uint64_t, std::uint64_t>>& dimensions) {
            Touch& touch = *new (self) Touch{.address = address, .bytes = {}, .writes = writes};
            touch.bytes.item_bytes = item_bytes;
            for (const auto& [size, stride] : dimensions) {
              touch.bytes.dimensions.push_back({size, stride});
            }
          },
          nb::arg("address"), nb::arg("writes"), nb::arg("item_bytes") = 0,
          nb::arg("dimensions") = std::vector<std::pair<std::uint64_t, std::uint64_t>>(),
          "`dimensions`: (size in elements, stride in bytes) of each; `item_bytes` 0: all of the "
          "region that the address is in.")
      .def_ro("address", &Touch::address)
      .def_ro("writes", &Touch::writes);
  nb::class_<KnownNodes>(module, "KnownNodes", "See KnownNodes in rethread.h.")
      .def(
          "__init__",
          [](KnownNodes* self, std::uint32_t begin, std::uint32_t end, std::vector<Touch> touches,
             bool in_order) {
            new (self) KnownNodes{
                .begin = begin, .end = end, .touches = std::move(touches), .in_order = in_order};
          },
          nb::arg("begin"), nb::arg("end"), nb::arg("touches"), nb::arg("in_order") = false)
      .def_ro("begin", &KnownNodes::begin)
      .def_ro("end", &KnownNodes::end)
      .def_ro("touches", &KnownNodes::touches)
      .def_ro("in_order", &KnownNodes::in_order);
  nb::class_<HostNumber>(module, "HostNumber", "See HostNumber in host_number.h.")
      .def(
          "__init__",
          [](HostNumber* self, nb::handle in_a, nb::handle in_b) {
            new (self) HostNumber{.a = number_of(in_a), .b = number_of(in_b)};
          },
          nb::kw_only(), nb::arg("in_a"), nb::arg("in_b"),
          nb::sig("def __init__(self, *, in_a: float | int, in_b: float | int) -> None"),
          "`in_a`, `in_b`: its values in the two captures, both floats or both ints.");
}

}  // namespace

void bind_link(nb::module_& module) {
  bind_capture(module);
  bind_request(module);
  // The object registers the type and is not needed any more.
  // NOLINTNEXTLINE(bugprone-unused-raii,bugprone-throw-keyword-missing)
  nb::exception<UnsupportedGraph>(module, "UnsupportedGraph", PyExc_RuntimeError);

  nb::class_<Linked>(module, "Linked", "Two captures, linked; see link.h.")
      .def_prop_ro("problems", [](const Linked& self) { return self.graph.table.problems; })
      .def_prop_ro("words", [](const Linked& self) { return self.graph.table.words; })
      .def_prop_ro("relocations",
                   [](const Linked& self) { return self.graph.table.relocations.size(); })
      .def_prop_ro("coincidences", [](const Linked& self) { return self.graph.table.coincidences; })
      .def_prop_ro("noise", [](const Linked& self) { return self.graph.table.noise; })
      .def_prop_ro(
          "noise_words",
          [](const Linked& self) {
            std::vector<
                std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, bool>>
                words;
            words.reserve(self.graph.table.noise_words.size());
            for (const NoiseWord& word : self.graph.table.noise_words) {
              words.emplace_back(word.node, word.offset, word.a, word.b, word.certain);
            }
            return words;
          },
          "Words that differ and that nothing explains: (node, offset, in A, in B, certain); see "
          "NoiseWord in relocate.h.")
      .def_prop_ro(
          "relocated_words",
          [](const Linked& self) {
            std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::int64_t>>
                words;
            words.reserve(self.graph.table.relocations.size());
            for (const Relocation& word : self.graph.table.relocations) {
              words.emplace_back(word.node, word.offset, word.region, word.addend);
            }
            return words;
          },
          "(node, offset, region, addend) of each relocation; regions past the given ones are the "
          "graph's own allocations.")
      .def(
          "node_name",
          [](const Linked& self, std::uint32_t node) -> std::string {
            const Node& named = self.graph.image.nodes.at(node);
            switch (named.kind) {
              case NodeKind::kKernel:
                return kernel_name(*self.driver, named.shape);
              case NodeKind::kMemcpy:
                return "a copy";
              case NodeKind::kMemset:
                return "a fill";
              default:
                return "no kernel";
            }
          },
          nb::arg("node"), "A kernel's name, or what else the node is.")
      .def_prop_ro(
          "problem_node", [](const Linked& self) { return self.graph.table.problem_node; },
          "The node that the first problem is about; None when it is about the whole.")
      .def_prop_ro(
          "foreign_words",
          [](const Linked& self) {
            const std::vector<std::uint32_t>& created = self.graph.image.created;
            std::vector<std::pair<std::uint64_t, std::int64_t>> words;
            words.reserve(self.graph.table.foreign.size());
            for (const ForeignWord& word : self.graph.table.foreign) {
              const bool known = word.node < created.size();
              words.emplace_back(word.address, known ? std::int64_t{created[word.node]} : -1);
            }
            return words;
          },
          "Addresses of device memory in no region, the same in both captures; one per word.")
      .def_prop_ro("strays", [](const Linked& self) { return self.graph.table.strays; })
      .def_prop_ro("nodes", [](const Linked& self) { return self.graph.image.nodes.size(); })
      .def_prop_ro("kernels",
                   [](const Linked& self) { return self.graph.image.count(NodeKind::kKernel); })
      .def_prop_ro("copies",
                   [](const Linked& self) { return self.graph.image.count(NodeKind::kMemcpy); })
      .def_prop_ro("fills",
                   [](const Linked& self) { return self.graph.image.count(NodeKind::kMemset); })
      .def_prop_ro("edges", [](const Linked& self) { return self.graph.image.edges.size(); })
      .def_prop_ro(
          "copy_regions",
          [](const Linked& self) {
            return std::make_tuple(self.graph.first_copy, self.graph.arena - self.graph.first_copy);
          },
          "Index of the first copy's destination region, and how many copies there are.")
      .def_prop_ro("arena", [](const Linked& self) { return self.graph.arena; })
      .def_prop_ro("arena_bytes", [](const Linked& self) { return self.graph.layout.bytes; })
      .def_prop_ro("arena_pieces", [](const Linked& self) { return self.graph.pieces(); })
      .def_prop_ro(
          "lent", [](const Linked& self) { return self.graph.layout.lent; },
          "Pieces of scratch that stand in outputs.")
      .def_prop_ro("lower_bound", [](const Linked& self) { return self.graph.layout.lower_bound; })
      .def_prop_ro("lanes", [](const Linked& self) { return self.graph.lanes; })
      .def_prop_ro("parts", [](const Linked& self) { return self.graph.cuts.size() + 1; })
      .def_prop_ro("mentions", [](const Linked& self) { return self.graph.mentions; })
      .def_prop_ro(
          "number_words",
          [](const Linked& self) {
            std::vector<std::size_t> counts(self.graph.number_count);
            for (const NumberWord& word : self.graph.numbers) {
              ++counts[word.number];
            }
            return counts;
          },
          "Per host number: in how many places kernels take it.")
      .def_prop_ro(
          "predicted_us", [](const Linked& self) { return self.graph.predicted_us; },
          "When the last node ends, by the times that spread() was given.")
      .def("clone",
           [](const Linked& self) {
             return std::make_unique<Linked>(
                 Linked{self.driver, clone_of(*self.driver, self.graph)});
           })
      .def(
          "spread",
          [](const Linked& self, std::size_t lanes, const std::vector<double>& node_us,
             double memory) -> std::unique_ptr<Linked> {
            if (!node_us.empty() && node_us.size() != self.graph.image.nodes.size()) {
              throw nb::value_error("node_us has not one time per node");
            }
            std::optional<LinkedGraph> made = spread(
                *self.driver, self.graph, {.lanes = lanes, .node_us = node_us, .memory = memory});
            return made ? std::make_unique<Linked>(Linked{self.driver, std::move(*made)}) : nullptr;
          },
          nb::arg("lanes"), nb::arg("node_us") = std::vector<double>(),
          nb::arg("memory") = SpreadOptions{}.memory,
          "A copy in at most so many lanes, or None; see spread() in link.h.")
      .def(
          "delayed",
          [](const Linked& self, std::uint64_t seed) {
            return std::make_unique<Linked>(
                Linked{self.driver, delayed(*self.driver, self.graph, seed)});
          },
          nb::arg("seed"), "A copy with delays; see delayed() in link.h.")
      .def("program", &Linked::take_program, "The program; takes the graph, so only once.");
  nb::class_<ByteSet>(module, "ByteSet", "See rethread.h.")
      .def_ro("offset", &ByteSet::offset)
      .def_ro("item_bytes", &ByteSet::item_bytes)
      .def_prop_ro("dimensions", [](const ByteSet& self) {
        std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
        found.reserve(self.dimensions.size());
        for (const ByteSet::Dimension& each : self.dimensions) {
          found.emplace_back(each.size, each.stride);
        }
        return found;
      });
  nb::class_<Observer::Pair>(module, "ObservedPair", "See link.h.")
      .def_ro("before", &Observer::Pair::before)
      .def_ro("after", &Observer::Pair::after)
      .def_ro("bytes", &Observer::Pair::bytes)
      .def_prop_ro("but",
                   [](const Observer::Pair& self) {
                     return std::vector<ByteSet>(self.but.begin(), self.but.end());
                   })
      .def_ro("first_node", &Observer::Pair::first_node)
      .def_ro("last_node", &Observer::Pair::last_node);
  nb::class_<Observer>(module, "Observer", "See link.h.")
      .def(
          "__init__",
          [](Observer* self, const Linked& linked, std::uint32_t first, std::uint64_t most) {
            new (self) Observer(linked.graph, first, most);
          },
          nb::arg("linked"), nb::arg("first"), nb::arg("most"), nb::keep_alive<1, 2>())
      .def_prop_ro("next", &Observer::next)
      .def_prop_ro("bytes", &Observer::bytes)
      .def_prop_ro("pairs", &Observer::pairs)
      .def(
          "observed",
          [](const Observer& self, const Linked& linked, CUdeviceptr memory) {
            return std::make_unique<Linked>(
                Linked{linked.driver, self.observed(*linked.driver, linked.graph, memory)});
          },
          nb::arg("linked"), nb::arg("memory"));
  nb::class_<TimedLinked>(module, "Stopwatch", "See link.h.")
      .def(
          "__init__",
          [](TimedLinked* self, const Linked& linked) {
            new (self) TimedLinked{linked.driver, Stopwatch(*linked.driver, linked.graph)};
          },
          nb::arg("linked"))
      .def("take",
           [](TimedLinked& self) {
             return std::make_unique<Linked>(Linked{self.driver, self.stopwatch.take()});
           })
      .def("read", [](const TimedLinked& self) { return self.stopwatch.read(); });

  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  module.def(
      "link",
      [](std::uint64_t a, std::uint64_t b, const std::vector<LinkRegion>& regions,
         std::uint64_t phantom_begin, std::uint64_t phantom_end, bool twin,
         const std::vector<CopyOut>& copies, const Pairs& operators, bool share_scratch,
         bool arena_in_pieces, std::uint64_t smallest_loan, std::uint64_t peak_slack,
         const std::vector<HostNumber>& numbers, const std::vector<KnownNodes>& known,
         bool independence, const std::vector<int>& devices) {
        std::vector<OperatorSpan> spans;
        spans.reserve(operators.size());
        for (const auto& [begin, end] : operators) {
          spans.push_back({begin, end});
        }
        const Driver& driver = choose_driver(twin);
        const std::vector<CUcontext> contexts = primary_contexts(driver, devices);
        const LinkRequest request{.a = reinterpret_cast<CUgraph>(a),  // NOLINT
                                  .b = reinterpret_cast<CUgraph>(b),  // NOLINT
                                  .regions = regions,
                                  .copies = copies,
                                  .operators = spans,
                                  .numbers = numbers,
                                  .known = known,
                                  .phantom_begin = phantom_begin,
                                  .phantom_end = phantom_end,
                                  .contexts = contexts,
                                  .options = {.share_scratch = share_scratch,
                                              .arena_in_pieces = arena_in_pieces,
                                              .smallest_loan = smallest_loan,
                                              .peak_slack = peak_slack,
                                              .independence = independence}};
        return std::make_unique<Linked>(Linked{&driver, link(driver, request)});
      },
      nb::arg("a"), nb::arg("b"), nb::arg("regions"), nb::arg("phantom_begin"),
      nb::arg("phantom_end"), nb::kw_only(), nb::arg("twin") = false,
      nb::arg("copies") = std::vector<CopyOut>(), nb::arg("operators") = Pairs(),
      nb::arg("share_scratch") = true, nb::arg("arena_in_pieces") = false,
      nb::arg("smallest_loan") = LinkOptions{}.smallest_loan,
      nb::arg("peak_slack") = LinkOptions{}.peak_slack,
      nb::arg("numbers") = std::vector<HostNumber>(), nb::arg("known") = std::vector<KnownNodes>(),
      nb::arg("independence") = LinkOptions{}.independence, nb::arg("devices") = std::vector<int>(),
      "Links two captures (CUgraph handles as integers). Copies are made at the end of the graph, "
      "into region copy_regions[0] + i; `operators` are the nodes that were launched together, as "
      "(count before, count after). `devices`: that regions are numbered by. The rest: "
      "LinkRequest, "
      "LinkOptions.");

  module.def(
      "may_lead_to",
      [](std::uint64_t stream, const std::vector<CUdeviceptr>& foreign,
         const std::vector<std::pair<CUdeviceptr, std::size_t>>& places, bool twin) {
        std::vector<MemoryRange> ranges;
        ranges.reserve(places.size());
        for (const auto& [address, bytes] : places) {
          ranges.push_back({address, bytes});
        }
        return may_lead_to(choose_driver(twin), reinterpret_cast<CUstream>(stream),  // NOLINT
                           foreign, ranges);
      },
      nb::arg("stream"), nb::arg("foreign"), nb::arg("places"), nb::arg("twin") = false,
      "Whether memory at `foreign` addresses leads to one of `places`, (address, bytes) each; see "
      "may_lead_to in link.h. Never raises.");

  nb::class_<Program>(module, "Program", "An instantiated graph and its binding; see program.h.")
      .def("bind",
           [](Program& self, std::uint32_t region, std::uint64_t address) {
             if (region >= self.region_count()) {
               throw std::out_of_range("no such region");
             }
             self.bind(region, address);
           })
      .def(
          "set_number",
          [](Program& self, std::uint32_t number, nb::handle value) {
            if (number >= self.number_count()) {
              throw std::out_of_range("no such host number");
            }
            self.set_number(number, number_of(value));
          },
          nb::arg("number"), nb::arg("value"),
          nb::sig("def set_number(self, number: int, value: float | int) -> None"))
      .def("launch",
           [](Program& self, std::uint64_t stream) {
             self.launch(reinterpret_cast<CUstream>(stream));  // NOLINT
           })
      .def("bound", [](const Program& self, std::uint32_t region) { return self.bound(region); })
      .def_prop_ro("updates", &Program::updates);
}

}  // namespace pygraph::bindings
