#include "server/replication/grpc_follow_call.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/impl/codegen/rpc_method.h"
#include "grpcpp/support/sync_stream.h"

namespace lodestone::server {
namespace {

constexpr char kFollowMethod[] = "/lodestone.v1.Replication/Follow";

class GrpcFollowCall final : public FollowCall {
 public:
  explicit GrpcFollowCall(const std::shared_ptr<grpc::Channel>& channel)
      : method_(kFollowMethod, grpc::internal::RpcMethod::BIDI_STREAMING, channel),
        stream_(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(), method_, &context_)) {}

  bool Write(const grpc::ByteBuffer& message) override { return stream_->Write(message); }
  bool Read(grpc::ByteBuffer* message) override { return stream_->Read(message); }
  void TryCancel() override { context_.TryCancel(); }
  absl::Status Finish() override { return FromCall(stream_->Finish()); }

 private:
  grpc::ClientContext context_;
  const grpc::internal::RpcMethod method_;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
};

class GrpcFollowPlace final : public FollowPlace {
 public:
  GrpcFollowPlace(const std::string& address, const CredentialsRef& credentials)
      // A block with its state may be longer than any message of a worker.
      : channel_(MakeChannel(address, std::numeric_limits<int32_t>::max(), credentials)) {}

  std::unique_ptr<FollowCall> Call() override { return std::make_unique<GrpcFollowCall>(channel_); }
  void Reconnect() override { lodestone::Reconnect(channel_.get()); }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

std::unique_ptr<FollowPlace> OverGrpc(const std::string& address, const CredentialsRef& credentials) {
  return std::make_unique<GrpcFollowPlace>(address, credentials);
}

}  // namespace lodestone::server
