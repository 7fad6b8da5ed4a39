#include "server/coordinator/event_queue.h"

#include <algorithm>
#include <cstdint>

#include "server/coordinator/member_place.h"

namespace lodestone::server {

void EventQueue::Note(absl::string_view kind, const MemberPlace& place, std::string text) {
  v1::Event event;
  event.set_time_ms(static_cast<uint64_t>(std::max<int64_t>(0, time_->NowMs())));
  event.set_kind(std::string(kind));
  event.set_who(ShortName(place.role, place.index));
  event.set_text(std::move(text));
  events_.push_back(std::move(event));
}

}  // namespace lodestone::server
