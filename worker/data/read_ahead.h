// A reader whose samples are read by a thread of its own, ahead of the one that takes them, so that several files are
// parsed at the same time and their samples come in the order of the files all the same.
//
// Not thread-safe. The thread keeps at most so many samples as a few blocks hold, whatever the file's size.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

class ReadAhead final : public SampleReader {
 public:
  explicit ReadAhead(std::unique_ptr<SampleReader> reader);
  // Ends the thread.
  ~ReadAhead() override;

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  uint64_t position() const override { return position_; }
  std::string PlaceOf(uint64_t position, const LineError& error) const override {
    return reader_->PlaceOf(position, error);
  }
  uint64_t file_offset() const override { return block_.file_offset; }
  uint64_t bytes_parsed() const override { return block_.bytes_parsed; }

 private:
  struct Sample {
    LineOutcome outcome = LineOutcome::kBlank;
    ParsedLine parsed;
    std::string label, id;  // What `parsed` points to.
    LineError error;
    uint64_t position = 0;
  };
  struct Block {
    std::vector<Sample> samples;
    uint64_t file_offset = 0;  // Behind them.
    uint64_t bytes_parsed = 0;
    absl::Status end;  // Of the reading, behind the samples.
    bool last = false;
  };

  void Run();
  void Fill(Block* block);
  // Reads a sample of the block; false, and how the block ends, if there is none.
  bool ReadSample(Sample* sample, Block* block);

  const std::unique_ptr<SampleReader> reader_;  // The thread's, but for PlaceOf.
  // Of the taker.
  Block block_;
  size_t next_ = 0;  // Of its samples.
  uint64_t position_ = 0;

  Mutex mu_;
  CondVar changed_;
  std::deque<Block> full_ ABSL_GUARDED_BY(mu_);
  std::vector<Block> empty_ ABSL_GUARDED_BY(mu_);  // To be filled again, whose memory is kept.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace lodestone::worker
