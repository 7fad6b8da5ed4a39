#include "common/security/core_credentials.h"

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "grpc/grpc.h"
#include "grpc/slice.h"
#include "grpc/support/string_util.h"

namespace lodestone {
namespace {

absl::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// What sends a token, and what that needs to live.
struct Sender {
  std::shared_ptr<TokenFile> token;
  std::shared_ptr<const void> keep;
};

// A token's way into each call: `state` is a Sender*.
int AddToken(void* state, grpc_auth_metadata_context, grpc_credentials_plugin_metadata_cb, void*,
             grpc_metadata metadata[GRPC_METADATA_CREDENTIALS_PLUGIN_SYNC_MAX], size_t* count, grpc_status_code* status,
             const char** error) {
  const std::string value = absl::StrCat("Bearer ", static_cast<Sender*>(state)->token->Get());
  metadata[0].key = grpc_slice_from_static_string(kAuthorizationKey);
  metadata[0].value = grpc_slice_from_copied_buffer(value.data(), value.size());
  *count = 1;
  *status = GRPC_STATUS_OK;
  *error = nullptr;
  return 1;  // Done already.
}

grpc_call_credentials* TokenCredentials(Sender sender) {
  grpc_metadata_credentials_plugin plugin = {};
  plugin.get_metadata = AddToken;
  plugin.debug_string = [](void*) { return gpr_strdup("a token"); };
  plugin.destroy = [](void* state) { delete static_cast<Sender*>(state); };
  plugin.state = new Sender(std::move(sender));
  plugin.type = "token";
  // Where anybody could read it there is no channel to send it on: CreateChannelImpl sees to that.
  return grpc_metadata_credentials_create_from_plugin(plugin, GRPC_SECURITY_NONE, nullptr);
}

// Whether what is sent to it does not leave this machine.
bool IsHere(const std::string& target) {
  if (absl::StartsWith(target, "unix:") || absl::StartsWith(target, "unix-abstract:")) return true;
  const absl::StatusOr<HostPort> address = ParseHostPort(target);
  return address.ok() && IsLoopback(address->host);
}

// What the connection of `context` has proved: the names in its certificate.
std::vector<std::string> NamesIn(const grpc_auth_context* context) {
  std::vector<std::string> names;
  for (const char* name : {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    grpc_auth_property_iterator at = grpc_auth_context_find_properties_by_name(context, name);
    while (const grpc_auth_property* const property = grpc_auth_property_iterator_next(&at)) {
      names.emplace_back(property->value, property->value_length);
    }
  }
  return names;
}

// A channel's argument that has something live as long as the channel and its connections.
constexpr char kKeptKey[] = "lodestone.kept";
using Kept = std::shared_ptr<const void>;

const grpc_arg_pointer_vtable* KeptTable() {
  static const grpc_arg_pointer_vtable table = {
      [](void* kept) -> void* { return new Kept(*static_cast<Kept*>(kept)); },
      [](void* kept) { delete static_cast<Kept*>(kept); },
      [](void* a, void* b) -> int {
        const void* const left = static_cast<Kept*>(a)->get();
        const void* const right = static_cast<Kept*>(b)->get();
        return left == right ? 0 : std::less<const void*>()(left, right) ? -1 : 1;
      }};
  return &table;
}

// Who stands at a port's door, and what the port needs to live.
struct Porter {
  Credentials::Door door;
  std::shared_ptr<const void> keep;
};

// A call's way in: `state` is a Porter*.
void AskDoor(void* state, grpc_auth_context* context, const grpc_metadata* metadata, size_t count,
             grpc_process_auth_metadata_done_cb done, void* argument) {
  IncomingCall call;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = TextOf(metadata[i].key);
    if (key == ":path") call.method = std::string(TextOf(metadata[i].value));
    if (key == kAuthorizationKey) call.authorization.emplace_back(TextOf(metadata[i].value));
    if (key == "user-agent") call.agent = std::string(TextOf(metadata[i].value));
  }
  call.certificate_names = NamesIn(context);
  const absl::Status status = static_cast<Porter*>(state)->door(call);
  done(argument, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       status.ok() ? nullptr : std::string(status.message()).c_str());
}

}  // namespace

CoreChannelCredentials::CoreChannelCredentials(const std::function<grpc_channel_credentials*()>& make, bool encrypted,
                                               std::shared_ptr<TokenFile> token, std::shared_ptr<const void> keep)
    : local_only_(token != nullptr && !encrypted), keep_(std::move(keep)), core_(make()) {
  if (token == nullptr) return;
  grpc_call_credentials* const of_calls = TokenCredentials({std::move(token), keep_});
  grpc_channel_credentials* const of_channel =
      std::exchange(core_, grpc_composite_channel_credentials_create(core_, of_calls, nullptr));
  grpc_call_credentials_release(of_calls);
  grpc_channel_credentials_release(of_channel);
}

CoreChannelCredentials::~CoreChannelCredentials() { grpc_channel_credentials_release(core_); }

std::shared_ptr<grpc::Channel> CoreChannelCredentials::CreateChannelImpl(const std::string& target,
                                                                         const grpc::ChannelArguments& settings) {
  if (local_only_ && !IsHere(target)) {
    const std::string why = absl::StrCat("the token is not shown to ", target,
                                         " without encryption, where anybody on the way could read it: set "
                                         "security.authorities");
    return grpc::CreateChannelInternal(
        "", grpc_lame_client_channel_create(target.c_str(), GRPC_STATUS_UNAUTHENTICATED, why.c_str()), {});
  }
  grpc::ChannelArguments all = settings;
  all.SetPointerWithVtable(kKeptKey, &keep_, KeptTable());
  grpc_channel_args core_settings;
  all.SetChannelArgs(&core_settings);
  return grpc::CreateChannelInternal("", grpc_channel_create(target.c_str(), core_, &core_settings), {});
}

CoreServerCredentials::CoreServerCredentials(const std::function<grpc_server_credentials*()>& make,
                                             Credentials::Door door, std::shared_ptr<const void> keep)
    : core_(make()) {
  grpc_auth_metadata_processor processor = {};
  if (door != nullptr) processor.process = AskDoor;
  processor.destroy = [](void* state) { delete static_cast<Porter*>(state); };
  processor.state = new Porter{std::move(door), std::move(keep)};
  grpc_server_credentials_set_auth_metadata_processor(core_, processor);
}

CoreServerCredentials::~CoreServerCredentials() { grpc_server_credentials_release(core_); }

int CoreServerCredentials::AddPortToServer(const std::string& address, grpc_server* server) {
  return grpc_server_add_http2_port(server, address.c_str(), core_);
}

}  // namespace lodestone
