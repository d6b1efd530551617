/* SPDX-License-Identifier: BSD-3-Clause */
/* The PMIx server accepts connections of this user's processes only, and does not wait for a peer
 * that keeps silent.
 *
 * PMIx believes the user id that a client claims, and reads each new client's greeting before it
 * knows anything about it. It offers no callback in between. But it accepts and reads through the C
 * library's accept and recv, which a program may replace. berth's accept closes a peer of another
 * user before PMIx reads a byte of it, and says EAGAIN, after which PMIx waits for the next one.
 * The accepted sockets have a time limit (server_socket.c), which recv reports as EAGAIN, or as
 * fewer bytes than MSG_WAITALL asked for. PMIx 4.2.2 drops such a peer after EAGAIN, but 4.2.3 to
 * 6.1 read again, forever, in their single thread. berth's recv says ETIMEDOUT, after which each
 * version drops the peer. */
#undef _FORTIFY_SOURCE /* it defines recv in a header, and clang then refuses to export this one   \
			*/
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "rendezvous/sock_diag.h"
#include "pmix/server_process_internal.h"

static bool serves; /* this process runs the PMIx server */
static bool guarded;

void server_accept_guard(void)
{
	int rc = sock_diag_listeners(NULL, 0, NULL, 0);

	serves = true;
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

__attribute__((visibility("default"))) ssize_t recv(int fd, void *data, size_t size, int flags)
{
	ssize_t count = recvfrom(fd, data, size, flags, NULL, NULL);

	if (!serves || flags & MSG_DONTWAIT || fcntl(fd, F_GETFL) & O_NONBLOCK)
		return count;
	bool late =
		count < 0 ? errno == EAGAIN : flags & MSG_WAITALL && count && (size_t)count < size;

	if (!late)
		return count;
	errno = ETIMEDOUT;
	return -1;
}
