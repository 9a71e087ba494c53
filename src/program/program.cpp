#include "pygraph/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>

namespace pygraph {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);

void check_relocation(const Relocation& relocation, const Image& image, std::size_t region_count) {
  if (relocation.node >= image.nodes.size() ||
      std::size_t{relocation.offset} + kWord > image.nodes[relocation.node].block.size() ||
      relocation.offset % kWord != 0) {
    throw std::invalid_argument(
        fmt::format("relocation of node {} at byte {} lies outside the node's parameter block",
                    relocation.node, relocation.offset));
  }
  if (relocation.region >= region_count) {
    throw std::invalid_argument(fmt::format("relocation names region {}, but there are {} regions",
                                            relocation.region, region_count));
  }
}

void check_number(const NumberWord& word, const Image& image, std::size_t number_count) {
  const std::uint32_t bytes = bytes_of(word.encoding);
  if (word.node >= image.nodes.size() ||
      std::size_t{word.offset} + bytes > image.nodes[word.node].block.size() ||
      word.offset % bytes != 0) {
    throw std::invalid_argument(
        fmt::format("a host number in node {} at byte {} lies outside the node's parameter block",
                    word.node, word.offset));
  }
  if (word.number >= number_count) {
    throw std::invalid_argument(fmt::format("a word names host number {}, but there are {} numbers",
                                            word.number, number_count));
  }
}

std::string text_of(NumberValue value) {
  return std::visit([](auto number) { return fmt::format("{}", number); }, value);
}

}  // namespace

Program::Program(const Driver& driver, GraphHandle graph, Image image,
                 std::span<const Relocation> relocations, std::size_t region_count,
                 std::span<const NumberWord> numbers, std::size_t number_count)
    : driver_(&driver),
      graph_(std::move(graph)),
      bound_(region_count, kUnbound),
      numbers_(number_count) {
  for (const Relocation& relocation : relocations) {
    check_relocation(relocation, image, region_count);
  }
  for (const NumberWord& word : numbers) {
    check_number(word, image, number_count);
  }
  driver.check(driver.api.cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  // From here on pointers into the blocks are kept: `nodes_` must not be resized again.
  nodes_.resize(image.nodes.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Slot& slot = nodes_[i];
    slot.node = std::move(image.nodes[i]);
    slot.block_bytes = slot.node.block.size();
    for (const ParameterSlot& parameter : slot.node.parameters) {
      slot.arguments.push_back(slot.node.block.data() + parameter.offset);
    }
    if (slot.node.form == ParameterForm::kPacked) {
      void* const form[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, slot.node.block.data(),
                            CU_LAUNCH_PARAM_BUFFER_SIZE, &slot.block_bytes, CU_LAUNCH_PARAM_END};
      std::copy(std::begin(form), std::end(form), slot.extra);
    }
  }
  note_relocations(relocations);
  note_numbers(numbers);
  dirty_.reserve(nodes_.size());
}

void Program::note_relocations(std::span<const Relocation> relocations) {
  const std::size_t region_count = bound_.size();
  first_patch_.assign(region_count + 1, 0);
  for (const Relocation& relocation : relocations) {
    ++first_patch_[relocation.region + 1];
  }
  for (std::size_t region = 0; region < region_count; ++region) {
    unbound_ += first_patch_[region + 1] != 0 ? 1 : 0;
    first_patch_[region + 1] += first_patch_[region];
  }
  patches_.resize(relocations.size());
  std::vector<std::uint32_t> next(first_patch_.begin(), first_patch_.end() - 1);
  for (const Relocation& relocation : relocations) {
    std::byte* block = nodes_[relocation.node].node.block.data();
    patches_[next[relocation.region]++] = {
        reinterpret_cast<std::uint64_t*>(block + relocation.offset),  // NOLINT
        relocation.node, relocation.addend};
  }
}

void Program::note_numbers(std::span<const NumberWord> words) {
  for (const NumberWord& word : words) {
    Number& number = numbers_[word.number];
    unset_ += number.words.empty() ? 1 : 0;
    number.words.push_back(
        {nodes_[word.node].node.block.data() + word.offset, word.node, word.encoding});
  }
}

std::size_t Program::nodes_of(std::uint32_t region) const {
  std::set<std::uint32_t> nodes;
  for (std::uint32_t i = first_patch_[region]; i < first_patch_[region + 1]; ++i) {
    nodes.insert(patches_[i].node);
  }
  return nodes.size();
}

void Program::rebind(std::uint32_t region, CUdeviceptr address) noexcept {
  const std::uint32_t end = first_patch_[region + 1];
  std::uint32_t patch = first_patch_[region];
  if (bound_[region] == kUnbound && patch != end) {
    --unbound_;
  }
  bound_[region] = address;
  for (; patch != end; ++patch) {
    const Patch& word = patches_[patch];
    *word.word = address + static_cast<std::uint64_t>(word.addend);
    mark(word.node);
  }
}

void Program::unbind() noexcept {
  exec_.reset();
  unbound_ = 0;
  for (std::uint32_t region = 0; region < bound_.size(); ++region) {
    bound_[region] = kUnbound;
    unbound_ += mentions(region) ? 1 : 0;
  }
}

void Program::set_number(std::uint32_t number, NumberValue value) {
  const EncodedNumber encoded(value);
  Number& target = numbers_[number];
  for (const NumberPatch& word : target.words) {
    if (!encoded.as(word.encoding).has_value()) {
      throw std::out_of_range(
          fmt::format("host number {} is {}, which its {} bytes in node {} cannot hold", number,
                      text_of(value), bytes_of(word.encoding), word.node));
    }
  }
  for (const NumberPatch& word : target.words) {
    const std::optional<std::uint64_t>& bits = encoded.as(word.encoding);
    if (bits.has_value() && std::memcmp(word.at, &*bits, bytes_of(word.encoding)) != 0) {
      std::memcpy(word.at, &*bits, bytes_of(word.encoding));
      mark(word.node);
    }
  }
  unset_ -= target.set || target.words.empty() ? 0 : 1;
  target.set = true;
}

CUresult Program::push_kernel(Slot& slot, Into into) {
  const Node& node = slot.node;
  CUDA_KERNEL_NODE_PARAMS launch{};
  launch.func = node.shape.function;
  launch.kern = node.shape.kernel;
  launch.ctx = node.shape.context;
  launch.gridDimX = node.shape.grid[0];
  launch.gridDimY = node.shape.grid[1];
  launch.gridDimZ = node.shape.grid[2];
  launch.blockDimX = node.shape.block[0];
  launch.blockDimY = node.shape.block[1];
  launch.blockDimZ = node.shape.block[2];
  launch.sharedMemBytes = node.shape.shared_bytes;
  if (node.form == ParameterForm::kPacked) {
    launch.extra = slot.extra;
  } else {
    launch.kernelParams = slot.arguments.data();
  }
  const auto set = [&] {
    const DriverApi& api = driver_->api;
    return into == Into::kGraph
               ? api.cuGraphKernelNodeSetParams(node.handle, &launch)
               : api.cuGraphExecKernelNodeSetParams(exec_.get(), node.handle, &launch);
  };
  const CUresult code = set();
  const bool grants = code == CUDA_ERROR_INVALID_VALUE && grant_shared_memory(node.shape);
  return grants ? set() : code;
}

// A library grants a kernel as much dynamic shared memory as it is about to launch it with
// (cuFuncSetAttribute), and less again for its next launch. The driver compares a node's with what
// is granted when parameters are set, which may be long after.
bool Program::grant_shared_memory(const LaunchShape& shape) const {
  if (shape.shared_bytes == 0) {
    return false;
  }
  constexpr auto kAttribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  const DriverApi& api = driver_->api;
  const int bytes = static_cast<int>(shape.shared_bytes);
  if (shape.function != nullptr) {
    return api.cuFuncSetAttribute(shape.function, kAttribute, bytes) == CUDA_SUCCESS;
  }
  CUdevice device = 0;
  return api.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
         api.cuKernelSetAttribute(kAttribute, bytes, shape.kernel, device) == CUDA_SUCCESS;
}

CUresult Program::push(Slot& slot, Into into) {
  const Node& node = slot.node;
  const DriverApi& api = driver_->api;
  switch (node.kind) {
    case NodeKind::kKernel:
      return push_kernel(slot, into);
    case NodeKind::kMemcpy:
      return push_copy(node, into);
    case NodeKind::kMemset: {
      const auto fill = node.as<CUDA_MEMSET_NODE_PARAMS>();
      return into == Into::kGraph ? api.cuGraphMemsetNodeSetParams(node.handle, &fill)
                                  : api.cuGraphExecMemsetNodeSetParams(exec_.get(), node.handle,
                                                                       &fill, context_of(node));
    }
    case NodeKind::kEmpty:
    case NodeKind::kEventRecord:
    case NodeKind::kEventWait:
    case NodeKind::kHost:
      break;  // stay what they were captured as
  }
  return CUDA_SUCCESS;
}

CUmemorytype Program::kind_at(CUdeviceptr address) const {
  unsigned int type = 0;
  const CUresult code =
      driver_->api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  return code == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE ? CU_MEMORYTYPE_DEVICE
                                                              : CU_MEMORYTYPE_HOST;
}

// The struct names the kind of memory at each end, and a region may be bound to memory of another
// kind than it was captured with. An end captured on the host is looked up every time; one captured
// on the device, the usual case, only when the driver refuses the copy as it stands.
CUresult Program::push_copy(const Node& node, Into into) {
  auto copy = node.as<CUDA_MEMCPY3D>();
  const auto push_as = [&] {
    const DriverApi& api = driver_->api;
    return into == Into::kGraph ? api.cuGraphMemcpyNodeSetParams(node.handle, &copy)
                                : api.cuGraphExecMemcpyNodeSetParams(exec_.get(), node.handle,
                                                                     &copy, context_of(node));
  };
  const auto settle_source = [&](CUdeviceptr address) {
    copy.srcMemoryType = kind_at(address);
    copy.srcDevice = address;
    copy.srcHost = reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
  };
  const auto settle_target = [&](CUdeviceptr address) {
    copy.dstMemoryType = kind_at(address);
    copy.dstDevice = address;
    copy.dstHost = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  };
  const bool source_on_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool target_on_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  if (source_on_host) {
    settle_source(reinterpret_cast<CUdeviceptr>(copy.srcHost));
  }
  if (target_on_host) {
    settle_target(reinterpret_cast<CUdeviceptr>(copy.dstHost));
  }
  const CUresult code = push_as();
  if (code == CUDA_SUCCESS || into == Into::kExec || (source_on_host && target_on_host)) {
    return code;
  }
  if (!source_on_host) {
    settle_source(copy.srcDevice);
  }
  if (!target_on_host) {
    settle_target(copy.dstDevice);
  }
  return push_as();
}

void Program::instantiate() {
  for (std::uint32_t index = 0; index < nodes_.size(); ++index) {
    if (const CUresult code = push(nodes_[index], Into::kGraph); code != CUDA_SUCCESS) {
      refuse(code, index);
    }
  }
  CUgraphExec exec = nullptr;
  const CUresult code = driver_->api.cuGraphInstantiate(&exec, graph_.get(), 0);
  if (code != CUDA_SUCCESS) {
    broken_ = true;
    driver_->check(code, "cuGraphInstantiate", fmt::format("a graph of {} nodes", nodes_.size()));
  }
  // An exec that is still running is freed when it is done (driver API, cuGraphExecDestroy).
  exec_ = ExecHandle(*driver_, exec);
  ++instantiations_;
}

void Program::refuse(CUresult code, std::uint32_t node) {
  broken_ = true;
  const Node& refused = nodes_[node].node;
  const char* what = refused.kind == NodeKind::kMemcpy ? "copy" : "fill";
  driver_->check(
      code, "setting node parameters",
      fmt::format("node {} ({})", node,
                  refused.kind == NodeKind::kKernel ? kernel_name(*driver_, refused.shape) : what));
}

void Program::refuse_in_forked_child() const {
  if (Driver::in_forked_child()) [[unlikely]] {
    throw std::logic_error(
        "a program made before this process was forked: CUDA does not survive a fork");
  }
}

void Program::refuse_incomplete() const {
  if (unbound_ != 0) [[unlikely]] {
    throw std::logic_error(fmt::format(
        "update of a program with {} unbound regions; bind every region first", unbound_));
  }
  if (unset_ != 0) [[unlikely]] {
    throw std::logic_error(fmt::format(
        "update of a program with {} host numbers that were never set; set every number first",
        unset_));
  }
}

void Program::update() {
  refuse_in_forked_child();
  refuse_incomplete();
  bool fresh = !exec_;
  for (std::size_t i = 0; i < dirty_.size() && !fresh; ++i) {
    const CUresult code = push(nodes_[dirty_[i]], Into::kExec);
    if (code != CUDA_SUCCESS) [[unlikely]] {
      if (nodes_[dirty_[i]].node.kind == NodeKind::kKernel) {
        refuse(code, dirty_[i]);
      }
      fresh = true;
    }
  }
  if (fresh) {
    instantiate();
  }
  for (const std::uint32_t index : dirty_) {
    nodes_[index].dirty = false;
  }
  updates_ += dirty_.size();
  dirty_.clear();
}

void Program::launch(CUstream stream) {
  refuse_in_forked_child();
  if (broken_) [[unlikely]] {
    throw std::logic_error("launch of a program that the driver refused to update");
  }
  if (!dirty_.empty() || !exec_) {
    update();
  }
  const CUresult code = driver_->api.cuGraphLaunch(exec_.get(), stream);
  if (code != CUDA_SUCCESS) [[unlikely]] {
    driver_->check(code, "cuGraphLaunch", fmt::format("a graph of {} nodes", nodes_.size()));
  }
}

}  // namespace pygraph
