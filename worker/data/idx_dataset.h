// Images, kept as bytes: in pieces of about 1 MiB, in memory or in a file.
//
// Thread-safe once it is finished, as StoredDataset. Owns the images.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/idx.h"
#include "worker/data/label_index.h"
#include "worker/data/spill_file.h"

namespace lodestone::worker {

class IdxDataset final : public Dataset {
 public:
  explicit IdxDataset(uint32_t pixels) : pixels_(pixels) {}  // At least 1.

  void Append(float label, const uint8_t* image) {
    if (labels_.size() % piece_images_ == 0) pieces_.emplace_back().memory.reserve(piece_images_ * pixels_);
    labels_.push_back(label);
    std::vector<uint8_t>& piece = pieces_.back().memory;
    piece.insert(piece.end(), image, image + pixels_);
  }
  // Those that stay are in memory.
  void KeepEverySecond() {
    // Without memory for a mapping there is none for images either.
    if (spill_ != nullptr && !spill_->Map().ok()) throw std::bad_alloc();
    IdxDataset kept(pixels_);
    for (uint64_t i = 0; i < labels_.size(); i += 2) kept.Append(labels_[i], ImageAt(i));
    labels_ = std::move(kept.labels_);
    pieces_ = std::move(kept.pieces_);
    spill_.reset();
  }
  // In memory, and in the file.
  uint64_t bytes() const { return labels_.size() * (pixels_ + sizeof(float)) - spilled_bytes(); }
  uint64_t spilled_bytes() const { return spill_ == nullptr ? 0 : spill_->bytes(); }
  // As StoredDataset's.
  absl::StatusOr<bool> SpillNewest(const std::string& folder) {
    size_t at = pieces_.size();
    while (at > 0 && pieces_[at - 1].memory.size() < piece_images_ * pixels_) --at;
    if (at == 0) return false;
    if (spill_ == nullptr) {
      LODESTONE_ASSIGN_OR_RETURN(spill_, SpillFile::Create(folder));
    }
    Piece& piece = pieces_[at - 1];
    LODESTONE_ASSIGN_OR_RETURN(
        piece.offset, spill_->Append({reinterpret_cast<const char*>(piece.memory.data()), piece.memory.size()}));
    piece.memory = {};
    return true;
  }
  absl::Status Finish(const LabelIndex* labels, std::shared_ptr<const PixelTransform> transform) {
    if (labels != nullptr) {
      for (float& label : labels_) label = labels->Final(label);
    }
    transform_ = std::move(transform);
    return spill_ == nullptr ? absl::OkStatus() : spill_->Map();
  }

  uint64_t size() const override { return labels_.size(); }

  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    const PixelTransform& transform = *transform_;
    batch->size = indices.size();
    batch->labels.resize(indices.size());
    batch->numeric.resize(indices.size() * pixels_);
    batch->offsets.assign(indices.size() + 1, 0);
    batch->keys.clear();
    batch->values.clear();
    for (size_t i = 0; i < indices.size(); ++i) {
      batch->labels[i] = labels_[indices[i]];
      transform.Apply(ImageAt(indices[i]), batch->numeric.data() + i * pixels_);
    }
  }
  void WillRead(uint64_t first, uint64_t count) const override {
    for (uint64_t i = first, next; i < first + count; i = next) {
      next = std::min(first + count, (i / piece_images_ + 1) * piece_images_);
      const Piece& piece = pieces_[i / piece_images_];
      if (piece.memory.empty()) spill_->WillRead(piece.offset + i % piece_images_ * pixels_, (next - i) * pixels_);
    }
  }

 private:
  static constexpr size_t kPieceBytes = 1 << 20;

  struct Piece {
    std::vector<uint8_t> memory;  // Empty: it is in the file,
    uint64_t offset = 0;          // here.
  };

  const uint8_t* ImageAt(uint64_t i) const {
    const Piece& piece = pieces_[i / piece_images_];
    const uint8_t* const images =
        piece.memory.empty() ? reinterpret_cast<const uint8_t*>(spill_->data()) + piece.offset : piece.memory.data();
    return images + i % piece_images_ * pixels_;
  }

  const uint32_t pixels_;
  const size_t piece_images_ = std::max<size_t>(1, kPieceBytes / pixels_);
  std::deque<float> labels_;
  std::vector<Piece> pieces_;         // Of the images, so that memory grows with what comes, without copies.
  std::unique_ptr<SpillFile> spill_;  // Null until it is needed.
  std::shared_ptr<const PixelTransform> transform_;
};

}  // namespace lodestone::worker
