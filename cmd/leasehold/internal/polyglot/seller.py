"""Sells what is in stock, under the lock of the service at URL, or without one where URL is empty.

usage: seller.py URL FOLDER

As short as such a caller can be: clients/python has one that renews.
"""

import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request

url, folder = sys.argv[1], sys.argv[2]
straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(what, **fields):
    """The answer, also where it is a refusal."""
    body = json.dumps({"name": "stock", **fields}).encode()
    request = urllib.request.Request(url + "/v1/" + what, body, {"Content-Type": "application/json"})
    try:
        with straight.open(request, timeout=40) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        return json.load(refusal)


def take():
    """An owner of our own, so that a call can be repeated, and the grant's token."""
    owner = secrets.token_hex(20)
    while url:
        grant = call("acquire", owner=owner, ttl_ms=30000, wait_ms=20000, note="python")
        if grant["outcome"] == "granted":
            return owner, grant["token"]
        if grant["outcome"] != "busy":
            sys.exit("python: %s" % grant)
    return owner, "0"


def meet():
    """Without a lock, waits until all sellers have looked."""
    if url:
        return
    with open(folder + "/looked.python", "w"):
        pass
    while not (os.path.exists(folder + "/looked.go") and os.path.exists(folder + "/looked.shell")):
        time.sleep(0.01)


def sell(token):
    """False when there is nothing left."""
    with open(folder + "/stock") as stock:
        left = int(stock.read())
    if left == 0:
        return False
    meet()
    time.sleep(0.005)  # somebody packs it
    with open(folder + "/stock.python", "w") as stock:
        stock.write("%d\n" % (left - 1))
    os.replace(folder + "/stock.python", folder + "/stock")
    with open(folder + "/sold", "a") as sold:
        sold.write("python %s\n" % token)
    return True


with open(folder + "/ready.python", "w"):
    pass
while not os.path.exists(folder + "/open"):
    time.sleep(0.01)
more = True
while more:
    owner, token = take()
    more = sell(token)
    if url:
        call("release", owner=owner)
