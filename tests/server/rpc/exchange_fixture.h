// A ps that is called by Exchange alone, and one client of it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/time_source.h"
#include "common/rpc/channel.h"
#include "common/wire/key_list.h"
#include "common/wire/message.h"
#include "common/wire/ps_name.h"
#include "common/wire/shard_map.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/exchange.h"
#include "server/rpc/parameter_service.h"
#include "server/store/store.h"
#include "tests/server/rpc/exchange_tables.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {

// A server with a dense and an embedding table, and a client as any other language would generate it.
class ExchangeTest : public StoreTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>;

  void SetUp() override {
    Make(options_);
    broadcaster_ = std::make_unique<Broadcaster>(store_.get(), 16);
    exchange_ = std::make_unique<Exchange>(store_.get(), broadcaster_.get(), kServerIncarnation, PsName(1, "here"),
                                           nullptr, nullptr, &memory_);
    service_ = std::make_unique<ParameterService>(store_.get(), broadcaster_.get(), exchange_.get(), kServerIncarnation,
                                                  nullptr, &memory_);
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, 64 << 20);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::ParameterServer::NewStub(MakeChannel("127.0.0.1:" + std::to_string(port), 64 << 20));

    v1::ExchangeRequest request;
    v1::EnsureTablesRequest* const ensure = request.add_calls()->mutable_ensure_tables();
    ensure->set_worker_incarnation(kWorker);
    *ensure->add_tables() = AddingDense("dense", kElements, kBlockElements);
    *ensure->add_tables() = AddingRows("rows", kDim);
    Open();
    tables_ = Ask(request)[0].ensure_tables();
    ASSERT_EQ(tables_.tables_size(), 2);
    EXPECT_EQ(tables_.server_incarnation(), kServerIncarnation);
  }

  void TearDown() override {
    broadcaster_->Shutdown();
    exchange_->Drain();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(10));
    stream_.reset();
    context_.reset();
    server_.reset();
  }

  // Opens a stream that means the ps called `meant`; empty: any.
  void Open(const std::string& meant = "") {
    stream_.reset();
    context_ = std::make_unique<grpc::ClientContext>();
    if (!meant.empty()) context_->AddMetadata(kMeantPsKey, meant);
    context_->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    stream_ = stub_->Exchange(context_.get());
  }

  TableId dense() const { return tables_.tables(0).id(); }
  TableId rows() const { return tables_.tables(1).id(); }

  // Sends, and waits for as many answers as there are calls; by id.
  std::map<uint64_t, v1::Answer> Ask(const v1::ExchangeRequest& request) {
    EXPECT_TRUE(stream_->Write(request));
    std::map<uint64_t, v1::Answer> answers;
    payloads_.clear();
    while (static_cast<int>(answers.size()) < request.calls_size()) {
      v1::ExchangeResponse response;
      if (!stream_->Read(&response)) {
        ADD_FAILURE() << "the stream ended: " << stream_->Finish().error_message();
        break;
      }
      Take(response, &answers);
    }
    return answers;
  }

  void Take(const v1::ExchangeResponse& response, std::map<uint64_t, v1::Answer>* answers) {
    size_t at = 0;
    for (const v1::Answer& answer : response.answers()) {
      payloads_[answer.id()] = response.payload().substr(at, answer.payload_bytes());
      at += answer.payload_bytes();
      EXPECT_TRUE(answers->emplace(answer.id(), answer).second) << "two answers to call " << answer.id();
    }
    EXPECT_EQ(at, response.payload().size());
  }

  // Appends a call whose header and payload a builder made.
  template <typename Builder, typename Header>
  static void Add(const Builder& builder, v1::ExchangeRequest* request, Header* (v1::Call::*header)()) {
    v1::Call* const call = request->add_calls();
    call->set_id(request->calls_size());
    *(call->*header)() = builder.header;
    const Payload payload = builder.payload();
    call->set_payload_bytes(payload.size());
    std::string bytes(payload.size(), '\0');
    payload.bytes().CopyTo(bytes.data());
    request->mutable_payload()->append(bytes);
  }
  void AddPush(Sequence sequence, float value, v1::ExchangeRequest* request) {
    auto push = NewPush(sequence);
    push.AddDense(dense(), {kElements, kBlockElements}, value);
    push.AddRows(rows(), kDim, {{7, value}, {8, value}}, true);
    Add(push, request, &v1::Call::mutable_push);
  }
  void AddPull(v1::ExchangeRequest* request) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), {kElements, kBlockElements}, std::nullopt);
    Add(pull, request, &v1::Call::mutable_pull);
  }
  // The keys in the order of a request's parts.
  static std::vector<Key> KeysInOrder(std::vector<Key> keys) {
    std::stable_sort(keys.begin(), keys.end(),
                     [](Key a, Key b) { return ShardOfKey(a, kShards) < ShardOfKey(b, kShards); });
    return keys;
  }
  // A push of `value` to the rows of `keys`, or (nullopt) a pull, with a list of its keys, which lie where `place`
  // says.
  void AddListed(const std::vector<Key>& keys, std::optional<float> value, Sequence sequence, v1::KeyList::Place place,
                 v1::ExchangeRequest* request) {
    std::vector<std::pair<Key, float>> rows_of;
    for (const Key key : keys) rows_of.emplace_back(key, value.value_or(0));
    v1::Call* const call = request->add_calls();
    call->set_id(request->calls_size());
    std::string payload;
    if (value.has_value()) {
      auto push = NewPush(sequence);
      push.AddRows(rows(), kDim, rows_of, true);
      *call->mutable_push() = push.header;
      payload = push.bytes();
    } else {
      RequestBuilder<v1::PullRequest> pull(kShards);
      pull.AddRows(rows(), kDim, rows_of, false);
      *call->mutable_pull() = pull.header;
      payload = pull.bytes();
    }
    SetName({keys[0], 1, static_cast<uint32_t>(keys.size())}, call->mutable_keys());
    call->mutable_keys()->set_place(place);
    if (place != v1::KeyList::IN_PARTS) {
      const std::vector<Key> ordered = KeysInOrder(keys);
      payload.clear();
      if (place == v1::KeyList::FIRST) {
        payload.assign(reinterpret_cast<const char*>(ordered.data()), ordered.size() * sizeof(Key));
      }
      const std::vector<float> values(value.has_value() ? keys.size() * kDim : 0, value.value_or(0));
      payload.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    call->set_payload_bytes(payload.size());
    request->mutable_payload()->append(payload);
  }
  std::vector<float> ValuesOf(uint64_t id) const {
    const std::string& bytes = payloads_.at(id);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  Store::Options options_;  // Of the store.
  ManualTime clock_;
  CallMemory memory_{[] { return 256 << 10; }, &clock_};
  std::unique_ptr<Broadcaster> broadcaster_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ParameterService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ParameterServer::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  v1::EnsureTablesResponse tables_;
  std::map<uint64_t, std::string> payloads_;  // Of the last Ask's answers, by id.
};

}  // namespace lodestone::server
