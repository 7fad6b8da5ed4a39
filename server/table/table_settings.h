// The settings of a table: all of its specification that may change while the table lives. What is applied to a shard
// depends on them, so each shard has its own, which change with one of its updates; the log, the followers and the
// checkpoints have them in the same order.
//
// Thread safety: immutable. Ownership: the table's, for as long as it lives.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/byte_view.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

struct TableSettings {
  v1::TableSpec spec;
  std::unique_ptr<const Optimizer> optimizer;

  // The step that update number `step` (from 0) takes with the floats of `gradient`, clipped to `norm_max` (0: not),
  // that came `delay` updates after its values were read.
  Optimizer::Step StepFor(uint64_t step, ByteView gradient, float norm_max, uint64_t delay) const;
  // Whether the table has steps: gradients wait in the shard until one is applied (Consistency.Sync, Tokens).
  bool collects_steps() const { return spec.consistency().has_sync() || spec.consistency().has_tokens(); }
  // Whether a later worker has brought them, and not the one that made the table.
  bool changed() const { return spec.revision() > 0; }
};

}  // namespace lodestone::server
