#include "worker/data/read_ahead.h"

#include <new>
#include <utility>

namespace lodestone::worker {
namespace {

constexpr size_t kBlockSamples = 256;
constexpr size_t kBlocks = 8;

}  // namespace

ReadAhead::ReadAhead(std::unique_ptr<SampleReader> reader) : reader_(std::move(reader)), empty_(kBlocks) {
  thread_ = std::thread([this] { Run(); });
}

ReadAhead::~ReadAhead() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ReadAhead::Run() {
  while (true) {
    Block block;
    {
      MutexLock lock(&mu_);
      while (!stop_ && empty_.empty()) changed_.Wait(&mu_);
      if (stop_) return;
      block = std::move(empty_.back());
      empty_.pop_back();
    }
    Fill(&block);
    const bool last = block.last;
    MutexLock lock(&mu_);
    full_.push_back(std::move(block));
    changed_.NotifyAll();
    if (last) return;
  }
}

bool ReadAhead::ReadSample(Sample* sample, Block* block) {
  sample->error = {};
  const absl::StatusOr<LineOutcome> outcome = reader_->Next(&sample->parsed, &sample->error);
  if (!outcome.ok() || *outcome == LineOutcome::kBlank) {
    block->end = outcome.status();
    block->last = true;
    return false;
  }
  sample->outcome = *outcome;
  sample->position = reader_->position();
  // The reader's next sample takes what they point to.
  sample->label.assign(sample->parsed.label.data(), sample->parsed.label.size());
  sample->id.assign(sample->parsed.id.data(), sample->parsed.id.size());
  return true;
}

void ReadAhead::Fill(Block* block) {
  size_t count = 0;
  try {
    block->samples.resize(kBlockSamples);
    while (count < kBlockSamples && ReadSample(&block->samples[count], block)) ++count;
  } catch (const std::bad_alloc&) {  // Which no other thread would see.
    block->end = absl::ResourceExhaustedError("not enough memory for the data; use more workers, or fewer threads");
    block->last = true;
  }
  block->samples.resize(count);
  block->file_offset = reader_->file_offset();
  block->bytes_parsed = reader_->bytes_parsed();
}

absl::StatusOr<LineOutcome> ReadAhead::Next(ParsedLine* parsed, LineError* error) {
  while (next_ == block_.samples.size()) {
    if (block_.last) {
      if (!block_.end.ok()) return block_.end;
      return LineOutcome::kBlank;
    }
    MutexLock lock(&mu_);
    if (!block_.samples.empty()) {
      empty_.push_back(std::move(block_));
      changed_.NotifyAll();
    }
    while (full_.empty()) changed_.Wait(&mu_);
    block_ = std::move(full_.front());
    full_.pop_front();
    next_ = 0;
  }
  Sample& sample = block_.samples[next_++];
  std::swap(*parsed, sample.parsed);
  parsed->label = sample.label;
  parsed->id = sample.id;
  *error = std::move(sample.error);
  position_ = sample.position;
  return sample.outcome;
}

}  // namespace lodestone::worker
