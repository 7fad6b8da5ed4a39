#include "common/rpc/channel.h"

#include <algorithm>

#include "common/base/limits.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace lodestone {
namespace {

// Measured (DESIGN section 7): with the defaults of 8 KiB reads and 16 KiB frames the same transfers run at half speed.
constexpr int kReadChunkBytes = 1 << 20;
constexpr int kReadChunkBytesMin = 64 << 10;
constexpr int kReadChunkBytesMax = 4 << 20;
constexpr int kFrameBytesMax = (1 << 24) - 1;

// A silent peer is asked for a sign of life after the first, and given up after the second.
constexpr int kKeepaliveTimeMs = 20'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

// Reconnection is left to our own retries, so the channel's own pauses are short.
constexpr int kReconnectBackoffInitialMs = 50;
constexpr int kReconnectBackoffMaxMs = 1'000;
constexpr int kConnectTimeoutMs = 2'000;

// A peer that cannot be reached any more may have its name and another address by now, as in Kubernetes: the name is
// looked up again with each attempt to connect, at most this often. (By default no sooner than after 30 s.)
constexpr int kLookUpPauseMs = 500;

}  // namespace

grpc::ChannelArguments ChannelSettings(uint32_t message_max_bytes) {
  grpc::ChannelArguments settings;
  settings.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  settings.SetInt(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, kReadChunkBytesMin);
  settings.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadChunkBytesMax);
  settings.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytesMax);

  settings.SetMaxSendMessageSize(static_cast<int>(message_max_bytes));
  settings.SetMaxReceiveMessageSize(
      static_cast<int>(std::max<size_t>(message_max_bytes, 4 * limits::kDeltaBytesTarget)));

  settings.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  settings.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  settings.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  settings.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  settings.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffInitialMs);
  settings.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectBackoffMaxMs);
  settings.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);

  settings.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kLookUpPauseMs);

  settings.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // Else heartbeats would queue behind gradients.
  settings.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);             // Our calls are retried by common/base/retry.h.
  settings.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);          // The cluster's own machines are never behind one.
  return settings;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, uint32_t message_max_bytes,
                                           const CredentialsRef& credentials) {
  return ChannelWith(credentials, address, ChannelSettings(message_max_bytes));
}

bool Reconnect(grpc::Channel* channel) {
  const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/false);
  if (state != GRPC_CHANNEL_TRANSIENT_FAILURE && state != GRPC_CHANNEL_CONNECTING) return false;
  grpc::experimental::ChannelResetConnectionBackoff(channel);
  return true;
}

void ApplyServerSettings(grpc::ServerBuilder* builder, uint32_t message_max_bytes) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(message_max_bytes));
  builder->SetMaxSendMessageSize(-1);  // Answers are bounded by what they answer, deltas are cut by the server.
  // A compressed message would be inflated whole before its size is looked at.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }

  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, kReadChunkBytes);
  builder->AddChannelArgument(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, kReadChunkBytesMin);
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadChunkBytesMax);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytesMax);

  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Clients' pings are never too many: a GOAWAY would cut every call of the connection.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 4);

  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // A taken port is an error, not a second listener.
}

}  // namespace lodestone
