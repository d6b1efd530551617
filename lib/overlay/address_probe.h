/* SPDX-License-Identifier: BSD-3-Clause */
/* Who answers at an address? One question to a listener (listener.h), and its answer, which only a
 * process with the secret and the same job can give. */
#ifndef BERTH_OVERLAY_ADDRESS_PROBE_H
#define BERTH_OVERLAY_ADDRESS_PROBE_H

#include <sys/socket.h>

#include "base/loop.h"
#include "overlay/wire.h"

struct address_probe;

enum address_probe_outcome {
	ADDRESS_PROBE_PENDING,
	ADDRESS_PROBE_OK,
	ADDRESS_PROBE_REFUSED,
	ADDRESS_PROBE_TIMEOUT, /* no connection in time */
	ADDRESS_PROBE_HOST_UNREACHABLE,
	ADDRESS_PROBE_UNREACHABLE,
	ADDRESS_PROBE_UNAUTHENTICATED, /* another process, or another machine */
	ADDRESS_PROBE_NO_REPLY,	       /* connected, but no answer in time */
};

struct address_probe_request {
	const struct secret *secret;
	const char *job;
	uint32_t load;	/* bytes that follow the question and the answer */
	int connect_ms; /* how long a connection may take, and then the answer; 0: until
			   address_probe_stop */
	int answer_ms;
	/* The outcome is known, and the probe is over. It may start another one. */
	void (*done)(struct address_probe *probe, enum address_probe_outcome outcome);
};

/* Embedded in its owner's struct; source.fd -1: not under way. */
struct address_probe {
	struct loop_source source;
	struct loop_timer late;
	struct loop *loop;
	struct address_probe_request request;
	bool connected;
	size_t sent, received; /* bytes, with the load */
	unsigned char question[WIRE_HELLO_BYTES], answer[WIRE_PROBE_ANSWER_BYTES];
};

/* Start. What request borrows must live until the probe is over. Return ADDRESS_PROBE_PENDING, or
 * the outcome if it is known at once; done is not called then. */
enum address_probe_outcome address_probe_start(struct address_probe *probe, struct loop *loop,
					       const struct address_probe_request *request,
					       const struct sockaddr_storage *to, socklen_t size);
/* End it without an outcome; one that is not under way is left alone. */
void address_probe_stop(struct address_probe *probe);
/* Has a whole answer arrived, from whomever? */
bool address_probe_answered(const struct address_probe *probe);

#endif
