// How connections are set up, on both sides: the settings under which bulk data moved fastest (large read chunks and
// frames), keepalive that both ends agree on, and the limits on messages.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"

namespace lodestone {

// Settings of a client's channel. `message_max_bytes` is server.message_max_bytes: nothing longer is sent; answers may
// be as long, or as long as a delta of normal size if that is more.
grpc::ChannelArguments ChannelSettings(uint32_t message_max_bytes);

// A channel to `address` (host:port) with a connection of its own: two channels to one address never share one.
// Connects when first used; an unreachable peer shows in the calls.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, uint32_t message_max_bytes);

// Settings of a server, the counterpart of ChannelSettings. Messages longer than `message_max_bytes` are refused with
// RESOURCE_EXHAUSTED before they are read.
void ApplyServerSettings(grpc::ServerBuilder* builder, uint32_t message_max_bytes);

}  // namespace lodestone
