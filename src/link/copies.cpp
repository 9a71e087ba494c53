#include "copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

namespace pygraph {
namespace {

std::vector<std::uint32_t> leaves(const Image& image) {
  std::vector<bool> has_after(image.nodes.size());
  for (const auto& [from, to] : image.edges) {
    has_after[from] = true;
  }
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < image.nodes.size(); ++i) {
    if (!has_after[i]) {
      found.push_back(i);
    }
  }
  return found;
}

std::vector<CUgraphNode> handles_of(const Image& image, const std::vector<std::uint32_t>& nodes) {
  std::vector<CUgraphNode> handles;
  handles.reserve(nodes.size());
  for (const std::uint32_t node : nodes) {
    handles.push_back(image.nodes[node].handle);
  }
  return handles;
}

/// Appends `node`, which runs behind all of `before`.
void append(Image& image, Node node, const std::vector<std::uint32_t>& before) {
  const auto index = static_cast<std::uint32_t>(image.nodes.size());
  for (const std::uint32_t from : before) {
    image.edges.emplace_back(from, index);
  }
  image.nodes.push_back(std::move(node));
  if (!image.created.empty()) {
    image.created.push_back(index);
  }
}

/// Many leaves and many copies meet in one empty node instead of in all pairs.
void join(const Driver& driver, CUgraph graph, Image& image, std::vector<std::uint32_t>& before) {
  const std::vector<CUgraphNode> handles = handles_of(image, before);
  Node node;
  driver.check(driver.api.cuGraphAddEmptyNode(&node.handle, graph, handles.data(), handles.size()),
               "cuGraphAddEmptyNode", "the end of the graph");
  append(image, std::move(node), before);
  before = {static_cast<std::uint32_t>(image.nodes.size() - 1)};
}

/// Both ends at the source: the destination is not known before the program is bound, and the
/// driver takes no address that does not exist.
CUDA_MEMCPY3D copy_onto_itself(CUdeviceptr at, std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = at;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = at;
  copy.WidthInBytes = bytes;
  copy.Height = 1;
  copy.Depth = 1;
  return copy;
}

}  // namespace

void check_copies(std::span<const CopyOut> copies, std::span<const LinkRegion> regions) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const CopyOut& copy = copies[i];
    if (copy.region >= regions.size()) {
      throw std::invalid_argument(fmt::format("copy {} names region {}, but there are {} regions",
                                              i, copy.region, regions.size()));
    }
    const LinkRegion& region = regions[copy.region];
    const std::size_t room =
        region.role == RegionRole::kScratch ? region.used_bytes : region.place.bytes;
    if (copy.offset > room || copy.bytes > room - copy.offset) {
      throw std::invalid_argument(
          fmt::format("copy {} reads {} bytes at offset {} of region {}, which has {}", i,
                      copy.bytes, copy.offset, copy.region, room));
    }
  }
}

Node add_copy(const Driver& driver, CUgraph graph, std::span<const CUgraphNode> before,
              CUdeviceptr at, std::size_t bytes, CUcontext context) {
  const CUDA_MEMCPY3D params = copy_onto_itself(at, bytes);
  Node node;
  node.shape.context = context;
  driver.check(driver.api.cuGraphAddMemcpyNode(&node.handle, graph, before.data(), before.size(),
                                               &params, context),
               "cuGraphAddMemcpyNode", fmt::format("a copy of {} bytes", bytes));
  node.kind = NodeKind::kMemcpy;
  node.form = ParameterForm::kStruct;
  node.block.resize(sizeof params);
  std::memcpy(node.block.data(), &params, sizeof params);
  node.words = {offsetof(CUDA_MEMCPY3D, srcDevice), offsetof(CUDA_MEMCPY3D, dstDevice)};
  return node;
}

void add_copies(const Driver& driver, const LinkRequest& request, LinkedGraph& linked) {
  const std::span<const CopyOut> copies = request.copies;
  if (copies.empty()) {
    return;
  }
  Image& image = linked.image;
  CUgraph graph = linked.graph.get();
  CUcontext current = nullptr;
  driver.check(driver.api.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  std::vector<std::uint32_t> before = leaves(image);
  if (before.size() > 1 && copies.size() > 1) {
    join(driver, graph, image, before);
  }
  const std::vector<CUgraphNode> handles = handles_of(image, before);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].bytes == 0) {
      continue;
    }
    const LinkRegion& source = request.regions[copies[i].region];
    const CUcontext context = request.contexts.empty() ? current : request.contexts[source.device];
    Node node = add_copy(driver, graph, handles, source.place.a + copies[i].offset, copies[i].bytes,
                         context);
    const auto index = static_cast<std::uint32_t>(image.nodes.size());
    linked.relocations.push_back(
        {index, node.words[0], copies[i].region, static_cast<std::int64_t>(copies[i].offset)});
    linked.relocations.push_back(
        {index, node.words[1], linked.first_copy + static_cast<std::uint32_t>(i), 0});
    append(image, std::move(node), before);
  }
  std::sort(image.edges.begin(), image.edges.end());
}

}  // namespace pygraph
