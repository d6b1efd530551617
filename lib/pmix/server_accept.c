/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server accepts connections of this user's processes only.
 *
 * PMIx believes the user id that a client claims, and reads each new client's greeting before it
 * knows anything about it. It offers no callback in between. But it accepts connections through the
 * C library's accept, which a program may replace. berth's closes a peer of another user before
 * PMIx reads a byte of it, and says EAGAIN, after which PMIx waits for the next one. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rendezvous/sock_diag.h"
#include "pmix/server_process_internal.h"

static bool guarded;

void server_accept_guard(void)
{
	uid_t uid;
	int rc = sock_diag_stranger_listens(0, geteuid(), &uid);

	guarded = rc >= 0;
	if (!guarded)
		log_info(LOG_PMIX, "cannot check the users of peers: %s", strerror(-rc));
}

static bool is_stranger(int fd)
{
	uid_t uid = 0;
	int rc = sock_diag_peer(fd, &uid);

	if (!rc && uid == geteuid())
		return false;
	/* A peer that is gone already, or on another machine, is as little a rank as another
	 * user's. */
	if (rc)
		log_info(LOG_PMIX, "rejected a peer whose user is unknown: error %d", -rc);
	else
		log_info(LOG_PMIX, "rejected a peer of user %ld", (long)uid);
	return true;
}

__attribute__((visibility("default"))) int accept(int fd, __SOCKADDR_ARG address,
						  socklen_t *restrict size)
{
	int peer = accept4(fd, address, size, 0);

	if (peer < 0 || !guarded || !is_stranger(peer))
		return peer;
	close(peer);
	errno = EAGAIN;
	return -1;
}
