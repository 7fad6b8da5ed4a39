"""A script that uses all of the package, for typing_test.py: it is checked, not run."""

import asyncio
from typing import Any, Dict, List, Optional

import numpy as np
import torch

import lodestone
import lodestone.torch


async def later(table: lodestone.Embedding) -> Any:
    return await table.pull([1, 2])


def callback(call: "lodestone.Call[None]") -> None:
    error: Optional[Exception] = call.exception()
    print(error, call.done())


def main() -> None:
    with lodestone.local(servers=2, config={"cluster": {"shards": 8}}) as servers, servers.connect() as cluster:
        address: str = servers.address
        index: Optional[int] = cluster.index
        tower = cluster.dense("tower", (2, 3), lodestone.AdamW(1e-3, weight_decay=0.1), lodestone.Normal(0, 0.1),
                              broadcast={"every_ms": 5})
        items = cluster.embedding("items", 16, {"adagrad": {}}, admission={"count_min": 2})
        found = cluster.table("tower")
        if isinstance(found, lodestone.Dense):
            shape: tuple[int, ...] = found.shape
            print(shape)
        push: lodestone.Call[None] = tower.push(np.ones((2, 3)))
        push.add_done_callback(callback)
        rows = items.pull([1, 2]).result(timeout=1.0)
        print(rows.shape)
        both: Dict[Any, Any] = cluster.pull([tower, (items, [1, 2])]).result()
        print(both[tower])
        cluster.push({tower: np.ones((2, 3)), items: ([1], np.ones((1, 16)))}, read=push)
        cluster.assign({tower: np.zeros((2, 3))})
        with cluster.subscribe(tower) as following:
            arrays: List[Any] = following.arrays
            following.refresh(wait=True)
            for arrays in following:
                print(arrays)
                break
        with cluster.subscribe(items, keys=[1, 2], every=0.5) as rows_following:
            print(rows_following.versions, rows_following.arrays[0])
        lodestone.save("x.safetensors", tower, (items, [1]))
        tables = lodestone.load("x.safetensors", cluster)
        print(tables["tower"].spec["name"], address, index)
        asyncio.run(later(items))
    try:
        status: Dict[str, Any] = lodestone.status("127.0.0.1:1", timeout=1)
        print(status)
    except lodestone.Unavailable as error:
        print(error.code)


def train(cluster: lodestone.Cluster) -> Dict[str, torch.Tensor]:
    items = lodestone.torch.EmbeddingBag(cluster.embedding("items", 16), mode="sum")
    tower = torch.nn.Linear(16, 1)
    optimizer = lodestone.torch.AsyncOptimizer(tower, cluster, lodestone.Adam(1e-3))
    batches = [torch.tensor([[1, 2]])]
    for batch in lodestone.torch.prefetch(batches, {items: lambda batch: batch}):
        optimizer.zero_grad()
        tower(items(batch)).sum().backward()
        optimizer.step(loss=1.0)
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer.state_dict()


main()
