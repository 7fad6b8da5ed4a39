"""The rooms of the house and the arrows between them: which room may use which."""

# Each room with the rooms below it in its top folder that it uses directly; what those use it may use too. A room may use
# every room of a folder below its own: proto and kernels < common < {server, worker} < tools.
ROOMS = {
    "common/base": [],
    "common/io": ["common/base"],
    "common/telemetry": ["common/base"],
    "common/config": ["common/base"],
    "common/wire": ["common/telemetry"],
    "common/security": ["common/config", "common/io", "common/telemetry"],
    "common/rpc": ["common/security", "common/wire"],
    "common/http": ["common/security"],
    "server/optimizer": [],
    "server/table": ["server/optimizer"],
    "server/shard": ["server/table"],
    "server/wal": [],
    "server/store": ["server/shard", "server/wal"],
    "server/checkpoint": ["server/shard"],
    "server/auth": [],
    "server/monitoring": [],
    "server/dashboard": [],
    "server/coordinator": ["server/auth", "server/monitoring"],
    "server/durability": ["server/checkpoint", "server/monitoring", "server/store", "server/wal"],
    "server/replication": ["server/auth", "server/checkpoint", "server/store"],
    "server/readiness": ["server/store"],
    "server/rpc": ["server/auth", "server/store"],
    "worker/rpc": [],
    "worker/capi": ["worker/client"],
    "worker/client": ["worker/rpc"],
    "worker/metrics": [],
    "worker/data": ["worker/metrics"],
    "worker/model": ["worker/data"],
    "worker/report": ["worker/client", "worker/metrics"],
    "worker/training": ["worker/client", "worker/data", "worker/metrics", "worker/model", "worker/report"],
}

def _uses(user, used):
    """Whether `user` reaches `used` over the arrows."""
    reached = [user]
    for _ in range(len(ROOMS)):
        reached += [below for room in reached for below in ROOMS[room] if below not in reached]
    return used in reached

def room_groups():
    """A package group uses_TOP_ROOM for each room: the packages that may depend on it."""
    for room in ROOMS:
        top = room.split("/")[0]
        users = ["//" + other for other in ROOMS if other.split("/")[0] == top and _uses(other, room)]
        above = {"common": ["//server/...", "//worker/..."], "server": ["//server"], "worker": ["//worker"]}[top]
        native.package_group(
            name = "uses_" + room.replace("/", "_"),
            packages = users + above + ["//tools/...", "//tests/..."],
        )
