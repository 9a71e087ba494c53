// Relocation by comparing two captures.
//
// The same work is captured twice, with every region at another address (phantom.h). A word of a
// parameter block is a relocation when in capture A it lies in a region, and in capture B it lies
// at the same offset of that region's other place; so is one that lies less than 4 KiB beside a
// region and moved by that region's displacement, which no other region shares. In a region in A
// but unchanged in B: a coincidence, a number that looks like an address; left alone. Different
// without being explained by a region: noise (uninitialised padding of structs passed by value,
// which may hold old addresses too); left to the proof, except where a parameter of its own holds
// an address of phantom memory: such a word is no padding, and the captures cannot be linked.
// Unchanged and in no region, yet an address of device memory: foreign, a constant of some library;
// left alone and reported. A word that holds a host number (host_number.h) is found by the bits of
// the two values that the number has in the captures. What this comparison cannot see (encoded
// addresses, pointers that hide in device memory) is left to the proof.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pygraph/host_number.h"
#include "pygraph/image.h"

namespace pygraph {

/// A range of memory that an image addresses, at its places in both captures: of the device, or of
/// the host for copies that have an end there. `bytes` may be 0. Relocations are relative to the
/// start.
struct Region {
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  std::size_t bytes = 0;
};

/// "The word at byte `offset` of node `node`'s block is the base of `region` plus `addend`."
struct Relocation {
  std::uint32_t node;
  std::uint32_t offset;
  std::uint32_t region;
  std::int64_t addend;

  bool operator==(const Relocation&) const = default;
};

/// A word that is an address of device memory, the same in both captures, and in no region.
struct ForeignWord {
  std::uint32_t node;
  std::uint32_t offset;
  CUdeviceptr address;

  bool operator==(const ForeignWord&) const = default;
};

/// A word of the noise. `certain`: what differs is no padding. It belongs to a parameter of 2 to 8
/// bytes (an object without members is one of 1 byte, which nobody writes), to a copy or a fill; or
/// the kernel takes its parameters as one block, and the word is an address of device memory in
/// both captures.
struct NoiseWord {
  std::uint32_t node;
  std::uint32_t offset;
  std::uint64_t a;
  std::uint64_t b;
  bool certain;

  bool operator==(const NoiseWord&) const = default;
};

/// Whether a number is an address of device memory. Asked once per distinct number, never for
/// numbers below 64 KiB or beyond what any device addresses (57 bits).
using IsDeviceMemory = std::function<bool(CUdeviceptr)>;

/// What the comparison found.
struct LinkTable {
  std::vector<Relocation> relocations;  ///< by node, then offset
  std::size_t words = 0;                ///< words compared
  std::size_t coincidences = 0;         ///< in a region in A, unchanged in B
  std::size_t strays = 0;               ///< of the noise: words that look like phantom addresses
  std::size_t noise = 0;                ///< words that differ, and not all of it is explained
  std::vector<NoiseWord> noise_words;   ///< all of it, by node, then offset
  std::vector<ForeignWord> foreign;     ///< by node, then offset
  std::vector<NumberWord> numbers;      ///< by node, then offset
  /// Why the two captures do not describe the same work, or a phantom word no region explains, or
  /// bits that host numbers explain in more than one way. Not empty: do not use the relocations.
  std::vector<std::string> problems;
  /// The node that the first problem is about; none when it is about the captures as a whole.
  std::optional<std::uint32_t> problem_node;

  [[nodiscard]] bool sound() const noexcept { return problems.empty(); }
};

/// Compares image `a` with its probe `b`. `regions` may stand in any order and must not overlap
/// in either place (throws std::invalid_argument naming the two). `phantom_begin`/`phantom_end`
/// bound all phantom addresses: a word of A inside them that changes, but that no region
/// explains, is a problem and not noise. An end of a copy in host memory that no region explains is
/// a problem: nobody knows whether it is there when the graph runs. Events and host functions must
/// be the same in both. Without `is_device_memory` no foreign words are found.
///
/// What differs in a kernel's parameters and no region explains may be one of `numbers`, in any of
/// its encodings; a word may hold two of 4 bytes each, and the 4 bytes behind the last word one.
/// Where two numbers, or two encodings, explain the same bytes, that is a problem: give
/// all of them values that nothing else has. Throws std::invalid_argument for a number whose values
/// in A and B differ in type, or do not differ in an encoding (two doubles that round to one
/// float).
LinkTable relocate(const Image& a, const Image& b, std::span<const Region> regions,
                   CUdeviceptr phantom_begin, CUdeviceptr phantom_end,
                   const IsDeviceMemory& is_device_memory = {},
                   std::span<const HostNumber> numbers = {});

}  // namespace pygraph
