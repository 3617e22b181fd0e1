"""Questions and answers over a socket."""

import asyncio
import socket

import pytest

from service.workers.channel import Channel, Failed, Gone


def between(talk):
    """Run `talk(one, other)` with both ends of a channel, each answering what it is asked."""

    async def run():
        one, other = [await Channel.opened(end) for end in socket.socketpair()]
        running = [asyncio.create_task(end.run()) for end in (one, other)]
        try:
            return await talk(one, other)
        finally:
            one.close()
            other.close()
            await asyncio.gather(*running)

    return asyncio.run(asyncio.wait_for(run(), 20))


async def double(number):
    return 2 * number


def test_each_end_may_ask_the_other_at_the_same_time():
    async def talk(one, other):
        one.on("double", double)
        other.on("double", double)
        return await asyncio.gather(*(end.ask("double", n) for n in range(50) for end in (one, other)))

    assert between(talk) == [2 * n for n in range(50) for _ in range(2)]


def test_answers_may_come_in_any_order():
    async def talk(one, other):
        asked = asyncio.Event()

        async def slow(_):
            await asked.wait()
            return "slow"

        async def quick(_):
            asked.set()
            return "quick"

        other.on("slow", slow)
        other.on("quick", quick)
        return await asyncio.gather(one.ask("slow"), one.ask("quick"))

    assert between(talk) == ["slow", "quick"]


def test_numbers_that_json_does_not_know_arrive():
    """A metric may be infinite."""

    async def talk(one, other):
        other.on("double", double)
        return await one.ask("double", float("inf"))

    assert between(talk) == float("inf")


def test_a_large_answer_arrives_whole():
    async def talk(one, other):
        async def long(n):
            return "x" * n

        other.on("long", long)
        return await one.ask("long", 3_000_000)

    assert len(between(talk)) == 3_000_000


def test_a_handler_that_fails_is_told_and_the_channel_goes_on():
    async def talk(one, other):
        async def broken(_):
            raise ValueError("no such thing")

        other.on("broken", broken)
        other.on("double", double)
        with pytest.raises(Failed, match="ValueError: no such thing"):
            await one.ask("broken")
        with pytest.raises(Failed, match="KeyError"):
            await one.ask("unheard of")
        return await one.ask("double", 4)

    assert between(talk) == 8


def test_what_is_told_needs_no_answer():
    async def talk(one, other):
        heard = asyncio.get_running_loop().create_future()

        async def listen(what):
            heard.set_result(what)

        other.on("listen", listen)
        one.tell("listen", "news")
        return await heard

    assert between(talk) == "news"


def test_whoever_waits_is_told_that_the_other_side_has_ended():
    async def talk(one, other):
        async def never(_):
            await asyncio.Event().wait()

        other.on("never", never)
        asking = asyncio.create_task(one.ask("never", within_s=None))
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(Gone):
            await asking
        with pytest.raises(Gone):
            await one.ask("never")
        one.tell("never")  # nobody hears it, and nothing fails

    between(talk)


def test_an_answer_that_does_not_come_in_time_is_not_waited_for():
    async def talk(one, other):
        async def late(_):
            await asyncio.sleep(0.05)

        other.on("late", late)
        other.on("double", double)
        with pytest.raises(TimeoutError):
            await one.ask("late", within_s=0.001)
        await asyncio.sleep(0.1)  # the late answer comes, and nobody wants it
        return await one.ask("double", 1)

    assert between(talk) == 2


def test_who_hears_nothing_before_the_other_side_ends_is_told_so():
    async def talk():
        one, other = [await Channel.opened(end) for end in socket.socketpair()]
        one.tell("hello", {"number": 3})
        said = [await other.first()]
        one.close()
        return [*said, await other.first()]

    assert asyncio.run(asyncio.wait_for(talk(), 20)) == [{"number": 3}, None]
