// gRPC's channel and server settings: the settings under which bulk data moved fastest (large read chunks and
// frames), keepalive that both ends agree on, and the limits on messages.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/security/credentials.h"
#include "grpcpp/channel.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/channel_arguments.h"

namespace lodestone {

// Settings of a client's channel. `message_max_bytes` is server.message_max_bytes: nothing longer is sent; answers may
// be as long, or as long as a delta of normal size if that is more.
grpc::ChannelArguments ChannelSettings(uint32_t message_max_bytes);

// A channel to `address` (host:port) with a connection of its own: two channels to one address never share one.
// Connects when first used; an unreachable peer shows in the calls, and its name is looked up again until it is
// reached.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, uint32_t message_max_bytes,
                                           const CredentialsRef& credentials = nullptr);

// If the peer could not be reached, tries that again now, however long gRPC would pause. (Not so a name that could not
// be looked up: gRPC itself tries that again, after pauses that grow from 1 s to 2 minutes.) False if that is not why
// there is no connection, or there is one: a peer that ends every connection is not hurried. In a process that serves
// nothing, the attempt goes on only while some thread is in a call or in the channel's WaitForConnected; while all of
// them sleep, gRPC looks after it every 5 s.
bool Reconnect(grpc::Channel* channel);

// Settings of a server, the counterpart of ChannelSettings. Messages longer than `message_max_bytes` are refused with
// RESOURCE_EXHAUSTED before they are read.
void ApplyServerSettings(grpc::ServerBuilder* builder, uint32_t message_max_bytes);

}  // namespace lodestone
