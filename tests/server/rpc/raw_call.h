// Calls of any method with any bytes.
#pragma once

#include <chrono>
#include <latch>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace lodestone::server {

inline grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  if (!buffer.Valid() || !buffer.DumpToSingleSlice(&slice).ok()) return "";
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// Sends `bytes` as the one request of `method` ("/package.Service/Method"); `response` may be null.
inline grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                            const std::string& bytes, std::string* response = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const grpc::ByteBuffer request = BufferOf(bytes);
  grpc::ByteBuffer answer;
  grpc::Status status;
  std::latch done(1);
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &answer, [&](grpc::Status ended) {
    status = std::move(ended);
    done.count_down();
  });
  done.wait();
  if (response != nullptr) *response = BytesOf(answer);
  return status;
}

}  // namespace lodestone::server
