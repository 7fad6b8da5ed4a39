"""The cost model: CPU time of either side as a function of messages, bytes and keys (README.md)."""

import collections
import math

from report import Failure, markdown_table, number_text

MESSAGE_BYTES = 2 << 20  # worker/client/request_router.h: MessageLimits::bytes_target.
PUSHES_IN_FLIGHT = 4  # worker.pushes_in_flight_max's default.
KEY_BYTES = 8
FLOAT_BYTES = 4
BATCH_KEYS = 4096  # Of the embedding rows.
FITTED_SIZES = (("4KiB", 4096), ("64KiB", 65536), ("1MiB", 1 << 20), ("4MiB", 4 << 20))


class Cost(collections.namedtuple("Cost", "per_message per_byte per_key")):
    """CPU seconds of one side for an operation: per message, per payload byte, per embedding key."""

    def of(self, messages, size, keys=0):
        return self.per_message * messages + self.per_byte * size + self.per_key * keys


def messages_of(size):
    """Messages that a transfer of `size` bytes to one server is cut into."""
    return max(1, math.ceil(size / MESSAGE_BYTES))


def fit_cost(points):
    """The Cost of (messages, bytes, seconds) points, none below 0, whose squared relative errors are least."""
    mm = mb = bb = m = b = 0.0
    for messages, size, seconds in points:
        x, y = messages / seconds, size / seconds
        mm, mb, bb, m, b = mm + x * x, mb + x * y, bb + y * y, m + x, b + y
    determinant = mm * bb - mb * mb
    per_message, per_byte = (m * bb - b * mb) / determinant, (b * mm - m * mb) / determinant
    if per_message < 0:
        per_message, per_byte = 0.0, b / bb
    if per_byte < 0:
        per_message, per_byte = m / mm, 0.0
    return Cost(per_message, per_byte, 0.0)


def seconds_of(rows, name, side, amount):
    """CPU seconds of one operation on one side; None if there is no such row or it has none."""
    spread = rows[name].values.get(side) if name in rows else None
    return spread.median * amount if spread is not None and spread.median > 0 else None


def fit_side(rows, operation, side):
    points = []
    for text, size in FITTED_SIZES:
        seconds = seconds_of(rows, "dense/%s/%s/depth8/clients1" % (operation, text), side, 1e-9 * size)
        if seconds is not None:
            points.append((messages_of(size), size, seconds))
    if len(points) < 2:
        raise Failure("the cost model needs at least two of the rows dense/%s/{%s}/depth8/clients1" %
                      (operation, ",".join(text for text, _ in FITTED_SIZES)))
    cost = fit_cost(points)
    # What a batch of rows costs beyond its messages and bytes, by key.
    seconds = seconds_of(rows, "embedding/%s/1000Krows/dim16/depth4" % operation, side, 1e-6 * BATCH_KEYS)
    if seconds is None:
        return cost
    size = BATCH_KEYS * (KEY_BYTES + 16 * FLOAT_BYTES)
    return cost._replace(per_key=max(0.0, (seconds - cost.of(messages_of(size), size)) / BATCH_KEYS))


def fit_model(report):
    """The Costs by (operation, side)."""
    rows = {row.name: row for row in report.rows}
    return {(operation, side): fit_side(rows, operation, side + "_cpu")
            for operation in ("push", "pull") for side in ("client", "server")}


def both(model, operation, size, keys=0):
    return sum(model[operation, side].of(messages_of(size), size, keys) for side in ("client", "server"))


def check_table(report, model):
    small, large, row_bytes = 64 << 10, 1 << 20, BATCH_KEYS * (KEY_BYTES + 64 * FLOAT_BYTES)
    rows = {row.name: row for row in report.rows}
    cells = [["measured, not fitted", "CPU us per operation, measured", "predicted", "error"]]
    for name, amount, predicted in (
        ("dense/push-pull/64KiB/depth8/clients1", 2e-9 * small, both(model, "push", small) + both(model, "pull", small)),
        ("dense/push/1MiB/depth8/clients4", 1e-9 * large, both(model, "push", large)),
        ("dense/pull/64KiB/depth8/clients2", 1e-9 * small, both(model, "pull", small)),
        ("embedding/pull-then-push/1000Krows/dim64/depth4", 1e-6 * BATCH_KEYS,
         both(model, "push", row_bytes, BATCH_KEYS) + both(model, "pull", row_bytes, BATCH_KEYS)),
    ):
        sides = [seconds_of(rows, name, side, amount) for side in ("client_cpu", "server_cpu")]
        if None in sides:
            cells.append([name, "not measured", number_text(1e6 * predicted), ""])
        else:
            cells.append([name, number_text(1e6 * sum(sides)), number_text(1e6 * predicted),
                          "%+.0f %%" % (100 * (predicted / sum(sides) - 1))])
    return markdown_table(cells)


def predict(model, dense_bytes=0.0, keys=0.0, dim=16, workers=100, servers=20, link=12.5e9, cores=32):
    """Steps per second that each worker makes at most by each limit alone, and bytes of messages in a server's memory.

    dense_bytes and keys are what a worker's step pushes and pulls; link is bytes per second in each direction, cores
    those of each machine that Lodestone may use.
    """
    dense, keys = dense_bytes / servers, keys / servers  # What one worker's step exchanges with one server.
    values = keys * dim * FLOAT_BYTES
    most = max(dense + values + 2 * keys * KEY_BYTES, dense + values)  # Keys go with the pull's request and the push.
    messages = (messages_of(dense) if dense else 0) + (messages_of(values) if keys else 0)
    size = dense + values + keys * KEY_BYTES
    server = sum(model[operation, "server"].of(messages, size, keys) for operation in ("push", "pull"))
    client = sum(model[operation, "client"].of(messages, size, keys) for operation in ("push", "pull"))
    limits = {
        "a server's link": link / (workers * most),
        "a server's cores": cores / (workers * server),
        "a worker's link": link / (servers * most),
        "a worker's cores": cores / (servers * client),
    }
    return limits, workers * PUSHES_IN_FLIGHT * size


def prediction_table(model):
    cells = []
    for name, scenario in (("dense, 100 MB", {"dense_bytes": 100e6}), ("dense, 1 GB", {"dense_bytes": 1e9}),
                           ("clicks: 1 MB dense, 26 Ki keys of 16", {"dense_bytes": 1e6, "keys": 26 * 1024})):
        limits, memory = predict(model, **scenario)
        least = min(limits, key=limits.get)
        cells = cells or [["each worker's step", "steps/s at most"] + ["by " + limit for limit in limits] +
                          ["messages in a server's memory"]]
        cells.append([name, "**%s**, %s" % (number_text(limits[least]), least)] +
                     [number_text(value) for value in limits.values()] + [number_text(1e-6 * memory) + " MB"])
    return markdown_table(cells)


def model_markdown(report):
    model = fit_model(report)
    cells = [["operation, side", "us per message", "CPU s per GB", "ns per key"]]
    for (operation, side), cost in model.items():
        cells.append(["%s, %s" % (operation, side), number_text(1e6 * cost.per_message),
                      number_text(1e9 * cost.per_byte), number_text(1e9 * cost.per_key)])
    return markdown_table(cells) + "\n" + check_table(report, model) + "\n" + prediction_table(model)
