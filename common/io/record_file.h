// Files of records: what logs and checkpoints are made of. A record is a protobuf message followed by raw bytes, its
// payload, and every byte of it is under a checksum (CRC32C):
//
//   head     32 bytes, little-endian: uint32 magic, uint32 message_bytes, uint64 payload_bytes, uint32 CRC of the
//            message, uint32 CRC of the payload, uint32 0, uint32 CRC of the 28 bytes before
//   message  message_bytes
//   payload  payload_bytes
//   end      4 bytes, none of them zero
//
// Because a record never ends with a zero, a file that was not written to its end (it stops inside the record, or the
// filesystem filled up the rest with zeros) is distinguished from one that was damaged later.
//
// Thread safety: a RecordBuilder is immutable once made, a RecordReader is used by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_view.h"
#include "common/io/file.h"
#include "google/protobuf/message_lite.h"

namespace lodestone {

inline constexpr size_t kRecordHeadBytes = 32;
inline constexpr size_t kRecordEndBytes = 4;

// A record on its way into a file. Borrows the payload, and the list of runs of those pieces of it that have one.
class RecordBuilder {
 public:
  // Nothing at all, of 0 bytes.
  RecordBuilder() = default;
  // REQUIRES: message and payload are within limits::kRecordMessageBytesMax and kRecordPayloadBytesMax.
  RecordBuilder(const google::protobuf::MessageLite& message, std::span<const ByteView> payload);
  // The same of a message that is serialized already.
  RecordBuilder(std::string_view message, std::span<const ByteView> payload);

  // In the file.
  uint64_t bytes() const { return bytes_; }
  // Appends what to write, in order; valid while the builder stays where it is and the payload lives.
  void AppendPieces(std::vector<iovec>* pieces) const;
  // The whole record in one string.
  std::string Copy() const;

 private:
  void Build(std::span<const ByteView> payload);

  std::string front_;  // Head and message; with the end, if there is no payload.
  std::vector<iovec> payload_;
  uint64_t bytes_ = 0;
};

// Reads the records of a file in order. The file must not be shortened meanwhile.
class RecordReader {
 public:
  // Reads the first `bytes_max` bytes of a file as if there were no more.
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path, uint64_t bytes_max = UINT64_MAX);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  enum class Outcome {
    kRecord,   // A whole record.
    kEnd,      // The file ends after the record before.
    kTorn,     // The record was not written to its end: the file ends inside it, or is only zeros from there on.
    kDamaged,  // The record is not what was written, or cannot be read.
  };

  // Where a record lies in memory: valid while the reader lives.
  struct Record {
    std::string_view message;
    ByteView payload;
  };
  // The next record. After any other outcome than kRecord, the same again.
  Outcome Next(Record* record);
  // Parses its message too; kDamaged if it is no such message.
  Outcome Next(google::protobuf::MessageLite* message, ByteView* payload);

  // Finds the first whole record that begins at `from` or later, whatever lies before it, and reads it; Next goes on
  // behind it. False: there is none, or the file cannot be read.
  bool Find(uint64_t from, Record* record);

  const std::string& path() const { return file_.path(); }
  // Bytes of the file, as far as it is read.
  uint64_t size() const { return size_; }
  // Of the record that Next was about; after kEnd, of the end.
  uint64_t offset() const { return offset_; }
  // Where the record after it begins. REQUIRES: it is a whole one.
  uint64_t next_offset() const { return next_; }
  // What is wrong after kTorn and kDamaged (DATA_LOSS), naming file and offset; else OK.
  const absl::Status& error() const { return error_; }
  // Whether that is because the file could not be read, which says nothing of what is in it.
  bool unreadable() const { return unreadable_; }

 private:
  struct Head;

  RecordReader(File file, uint64_t size, const uint8_t* data) : file_(std::move(file)), size_(size), data_(data) {}

  // Reads the file up to `end`, so that the mapping can be used up to there: a disk that cannot be read is an error
  // here and would be a signal there.
  absl::Status Fetch(uint64_t end);
  // What is wrong with the head at offset_, of which there are the bytes up to `end`, or with the rest of the record;
  // null: nothing.
  const char* CheckHead(uint64_t end, Head* head) const;
  static const char* CheckBody(const Head& head, const Record& record);
  // Whether the byte before `end` and all after it are zeros.
  bool ZerosFromBefore(uint64_t end);
  Outcome Stop(Outcome outcome, absl::string_view wrong);

  const File file_;
  const uint64_t size_;
  const uint8_t* const data_;  // The file, mapped; null if it is empty.
  uint64_t offset_ = 0;
  uint64_t next_ = 0;                // Where the next record begins.
  uint64_t fetched_ = 0;             // How far Fetch has come.
  std::unique_ptr<char[]> scratch_;  // For Fetch.
  Outcome outcome_ = Outcome::kRecord;
  absl::Status error_;
  bool unreadable_ = false;
};

}  // namespace lodestone
