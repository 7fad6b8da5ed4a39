// The rule by which the coordinator moves shards of its own accord (coordinator.rebalance: auto): a pure function of
// what each owner reports of its shards.
//
// Ps are compared in two measures: bytes of tables, and traffic. A ps's *part* of a measure is a multiple of the mean
// of the ps that may own shards: 1 is its fair part. A measure whose mean is below its minimum does not count.
//
//  1. Moves are due when in some measure the greatest and the least part are more than `difference` apart (Widest).
//  2. A move of a shard from A to B is useful if B with the shard has less than A has now, by more than a quarter of
//     `difference`; in both measures together, as weighted by the shard's own parts.
//  3. Of the useful moves the one comes first that lowers the sum of the squares of all parts the most, and so on, as
//     if those before had been made; to a shard's follower, which needs no copy, also if it lowers it by two thirds of
//     that. A shard that rests, or whose parts are below an eighth of a mean shard's, stays.
//
// What a ps follows does not count. After a row of moves, ShardMoves evens how many copies each holds.
//
// Each useful move lowers the sum of the squares. So with loads that stay as they are no arrangement comes twice: moves
// end, and none goes back and forth. One hot shard stays where it is, since it would make its new owner what its old
// one was; the shards beside it leave. After the last move the loads may change by that quarter before another is
// useful.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "server/coordinator/rebalance_options.h"

namespace lodestone::server {

// What an owner reports of a shard.
struct MeasuredShard {
  ShardId shard = 0;
  uint32_t owner = 0;
  double bytes = 0;                     // Of its tables.
  double traffic_bytes_per_second = 0;  // Payload of pushes and pulls.
  bool rests = false;                   // It is to stay where it is.
  std::vector<uint32_t> followers;      // To which it moves without a copy.
};

struct RebalanceMove {
  ShardId shard = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};

class ServerParts {
 public:
  // Only ps of `may_own` count, and their shards. REQUIRES: owners are below may_own.size().
  ServerParts(const RebalanceRule& rule, std::span<const MeasuredShard> shards, const std::vector<bool>& may_own);

  static constexpr size_t kMeasures = 2;
  // "bytes" or "traffic".
  static const char* NameOf(size_t measure);
  // Whether its mean is at its minimum, or above.
  bool Counts(size_t measure) const { return counts_[measure]; }

  // How far a ps is above the one with the least part of a measure.
  struct Difference {
    size_t measure = 0;
    uint32_t most = 0;
    uint32_t least = 0;
    double most_part = 0;
    double least_part = 0;

    double parts() const { return most_part - least_part; }
    // "ps 0 has 1.84 times the mean traffic, ps 2 0.10".
    std::string Text() const;
  };
  // Of the measure in which the ps are the farthest apart, and the one with the greatest part. nullopt: no measure
  // counts, or there are not two ps.
  std::optional<Difference> Widest() const;
  // What has become of a difference: of the same measure and `most`. nullopt: one of these does not count any more.
  std::optional<Difference> Again(const Difference& before) const;

  // The useful moves, the most useful first, at most `moves_max`.
  std::vector<RebalanceMove> ChooseMoves(size_t moves_max) const;

 private:
  static constexpr size_t kTargetsMax = 16;  // Ps with the least that a move is looked for to.
  using Parts = std::array<double, kMeasures>;

  // The widest of one measure.
  std::optional<Difference> WidestOf(size_t measure) const;
  // How much less the sum of squares is after a move of a shard with such parts; 0: the move is not useful.
  double GainOf(const Parts& shard, const Parts& from, const Parts& to) const;
  // Those with the least in all measures together, and in each.
  std::vector<uint32_t> TargetsOf(const std::vector<Parts>& servers) const;

  const RebalanceRule rule_;
  const std::vector<bool> may_own_;
  std::vector<MeasuredShard> shards_;  // Of ps that may own any.
  std::vector<Parts> shard_parts_;     // As shards_; 0 in a measure that does not count.
  std::vector<Parts> server_parts_;    // By ps.
  std::array<bool, kMeasures> counts_ = {};
  double shard_part_min_ = 0;  // In all measures together.
};

}  // namespace lodestone::server
