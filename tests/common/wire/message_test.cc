#include "common/wire/message.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

v1::PushRequest Header() {
  v1::PushRequest header;
  header.set_worker_incarnation(77);
  header.set_sequence(300);
  v1::Part* part = header.add_parts();
  part->set_shard(3);
  part->add_blocks(1);
  part->add_blocks(1000);
  return header;
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const auto& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::string Text(const ByteView& bytes) {
  std::string text(bytes.size(), '\0');
  bytes.CopyTo(text.data());
  return text;
}

ByteView ViewOf(const std::string& bytes) { return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}; }

TEST(Wire, WhatBuildMessageMakesAnyProtobufClientReads) {
  const std::vector<grpc::Slice> payload = {grpc::Slice(std::string("abc")), grpc::Slice(std::string()),
                                            grpc::Slice(std::string(100'000, 'z'))};
  const std::string bytes = Bytes(BuildMessage(Header(), payload));
  v1::PushRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  EXPECT_EQ(parsed.payload(), "abc" + std::string(100'000, 'z'));
  parsed.clear_payload();
  EXPECT_EQ(parsed.SerializeAsString(), Header().SerializeAsString());
}

TEST(Wire, WhatAnyProtobufClientSendsIsParsedWithoutCopyingThePayloadIntoTheHeader) {
  for (const size_t size : {0, 1, 5, 22, 23, 24, 127, 128, 70'000}) {
    v1::PushRequest message = Header();
    message.set_payload(std::string(size, 'p'));
    const std::string bytes = message.SerializeAsString();
    // One slice, two slices, and one byte per slice.
    for (const size_t cut : {bytes.size(), bytes.size() / 2 + 1, size_t{1}}) {
      std::vector<grpc::Slice> slices;
      for (size_t at = 0; at < bytes.size(); at += cut) slices.emplace_back(bytes.substr(at, cut));
      v1::PushRequest header;
      Payload payload;
      ASSERT_TRUE(ParseMessage(grpc::ByteBuffer(slices.data(), slices.size()), &header, &payload).ok());
      EXPECT_EQ(Text(payload.bytes()), std::string(size, 'p'));
      EXPECT_TRUE(header.payload().empty());
      EXPECT_EQ(header.SerializeAsString(), Header().SerializeAsString());
      Payload moved = std::move(payload);
      EXPECT_EQ(Text(moved.bytes()), std::string(size, 'p'));
      const Payload front = moved.Take(size / 2);
      EXPECT_EQ(Text(front.bytes()), std::string(size / 2, 'p'));
      EXPECT_EQ(Text(moved.bytes()), std::string(size - size / 2, 'p'));
    }
  }
}

TEST(Wire, ThePayloadMayStandBeforeOtherFields) {
  v1::PushRequest only_payload;
  only_payload.set_payload("xyz");
  const std::string bytes = only_payload.SerializeAsString() + Header().SerializeAsString();
  std::string header;
  ByteView payload;
  ASSERT_TRUE(SplitMessage(ViewOf(bytes), &header, &payload).ok());
  EXPECT_EQ(Text(payload), "xyz");
  EXPECT_EQ(header, Header().SerializeAsString());
}

TEST(Wire, EveryTruncationIsAnErrorOrAValidPrefix) {
  v1::PushRequest message = Header();
  message.set_payload("0123456789");
  const std::string bytes = message.SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string header;
    ByteView payload;
    const absl::Status status = SplitMessage(ViewOf(bytes).Take(size), &header, &payload);
    v1::PushRequest parsed;
    EXPECT_EQ(status.ok() && parsed.ParseFromString(header), parsed.ParseFromString(bytes.substr(0, size))) << size;
  }
}

TEST(Wire, TwoPayloadsAreRefusedWithTheOffset) {
  v1::PushRequest only_payload;
  only_payload.set_payload("xyz");
  std::string header;
  ByteView payload;
  const std::string twice = only_payload.SerializeAsString() + only_payload.SerializeAsString();
  const absl::Status status = SplitMessage(ViewOf(twice), &header, &payload);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 5: two payloads"));
}

// Regression: 64 MiB of empty parts became 3.4 GB before anything was checked.
TEST(Wire, ALongHeaderIsRefusedBeforeItIsParsed) {
  std::string bytes;
  for (int i = 0; i < 500; ++i) bytes += std::string("\x22\x00", 2);  // Field 4, parts, of no bytes.
  const grpc::Slice slice(bytes);
  v1::PushRequest header;
  Payload payload;
  ASSERT_TRUE(ParseMessage(grpc::ByteBuffer(&slice, 1), &header, &payload, SIZE_MAX, 1000).ok());
  EXPECT_EQ(header.parts_size(), 500);
  const absl::Status status = ParseMessage(grpc::ByteBuffer(&slice, 1), &header, &payload, SIZE_MAX, 999);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1000 bytes beside the payload; the limit is 999"));
}

TEST(Wire, RandomBytesNeverDoMoreThanFail) {
  constexpr unsigned kSeed = 99;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  int errors = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    grpc::Slice slice(bytes);
    v1::PushRequest header;
    Payload payload;
    const absl::Status status = ParseMessage(grpc::ByteBuffer(&slice, 1), &header, &payload);
    if (!status.ok()) {
      ++errors;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("lodestone.v1.PushRequest"));
    }
  }
  EXPECT_GT(errors, 10'000);
}

}  // namespace
}  // namespace lodestone
