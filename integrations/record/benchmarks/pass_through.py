"""The least that forwarding a call costs with aiohttp: a gateway that checks, records and streams nothing.

python pass_through.py UPSTREAM        prints its address
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp import web
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import Mapping

DROPPED: Final = {
    "host",
    "content-length",
    "connection",
    "transfer-encoding",
    "accept-encoding",
}


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that are forwarded."""
    return {
        name: value for name, value in headers.items() if name.lower() not in DROPPED
    }


async def main(upstream: str) -> None:
    """Serve until interrupted."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
    ) as session:

        async def answer(request: web.BaseRequest) -> web.Response:
            url = URL(upstream + request.path_qs.removeprefix("/v1"), encoded=True)
            body = await request.read()
            async with session.post(
                url, data=body, headers=kept(request.headers)
            ) as got:
                return web.Response(
                    status=got.status, body=await got.read(), headers=kept(got.headers)
                )

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print("http://{}:{}/v1".format(*runner.addresses[0]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
