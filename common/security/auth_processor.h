// The check of a server port's calls before their services see them, as gRPC's AuthMetadataProcessor.
//
// Thread-safe. Keeps the owner of the files that the port reads alive for as long as the port exists.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "common/security/incoming_call.h"
#include "grpcpp/security/auth_metadata_processor.h"

namespace lodestone {

// Judges a call before any of its messages is read. Must be quick: called on gRPC's threads.
using Authorizer = std::function<absl::Status(const IncomingCall&)>;

class AuthProcessor final : public grpc::AuthMetadataProcessor {
 public:
  // `authorize`: null admits every call. `owner`: kept alive.
  AuthProcessor(Authorizer authorize, std::shared_ptr<const void> owner);

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection, OutputMetadata* consumed,
                       OutputMetadata* response) override;

 private:
  const Authorizer authorize_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace lodestone
