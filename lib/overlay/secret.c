/* SPDX-License-Identifier: BSD-3-Clause */
/* A file is trusted only if no other user but root could have read or changed it. A new file is
 * written under a temporary name and linked into place, so that no reader finds half a secret. */
#include "overlay/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define DIGITS (2 * SECRET_BYTES)
#define COOKIE_MIN 16 /* OpenPBS's has 32 hexadecimal digits */
#define COOKIE_MAX 4096

static int sodium_start(struct error *err)
{
	if (sodium_init() < 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot initialize libsodium: no random numbers from the kernel");
	return 0;
}

int secret_generate(struct secret *out, struct error *err)
{
	int rc = sodium_start(err);

	if (!rc)
		randombytes_buf(out->bytes, sizeof out->bytes);
	return rc;
}

int secret_parse(const char *text, struct secret *out, struct error *err)
{
	struct secret secret;
	size_t size = 0;
	const char *end = NULL;
	int rc = sodium_start(err);

	if (rc)
		return rc;
	if (sodium_hex2bin(secret.bytes, sizeof secret.bytes, text, strlen(text), NULL, &size,
			   &end) ||
	    *end || size != sizeof secret.bytes)
		return error_set(
			err, ERR_DATA,
			"the secret must be exactly %d hexadecimal digits; it has %zu characters",
			DIGITS, strlen(text));
	*out = secret;
	secret_wipe(&secret);
	return 0;
}

int secret_derive(const char *cookie, const char *job, const char *nonce, struct secret *out,
		  struct error *err)
{
	static const char what[] = "berth secret of a PBS cookie 1";
	crypto_generichash_state state;
	int rc = sodium_start(err);

	if (rc)
		return rc;
	if (!cookie)
		return error_set(err, ERR_UNAVAILABLE,
				 "PBS_JOBCOOKIE is not set, but the agents' secret is derived from "
				 "it. Start berth in a PBS job.");
	if (strlen(cookie) < COOKIE_MIN || strlen(cookie) > COOKIE_MAX)
		return error_set(err, ERR_DATA,
				 "PBS_JOBCOOKIE has %zu characters; expected at least %d",
				 strlen(cookie), COOKIE_MIN);
	crypto_generichash_init(&state, NULL, 0, sizeof out->bytes);
	/* Each with its terminating NUL, so that no two triples yield the same bytes. */
	crypto_generichash_update(&state, (const unsigned char *)what, sizeof what);
	crypto_generichash_update(&state, (const unsigned char *)cookie, strlen(cookie) + 1);
	crypto_generichash_update(&state, (const unsigned char *)job, strlen(job) + 1);
	crypto_generichash_update(&state, (const unsigned char *)nonce, strlen(nonce) + 1);
	crypto_generichash_final(&state, out->bytes, sizeof out->bytes);
	sodium_memzero(&state, sizeof state);
	return 0;
}

void secret_for_ranks(const struct secret *secret, const char *job, enum secret_use use,
		      char text[65])
{
	char what[] = "berth secret of the ranks 0";
	crypto_generichash_state state;
	struct secret derived;

	/* The label's last digit is the use, so that each use has a secret of its own. */
	what[sizeof what - 2] += (char)use;
	crypto_generichash_init(&state, secret->bytes, sizeof secret->bytes, sizeof derived.bytes);
	crypto_generichash_update(&state, (const unsigned char *)what, sizeof what);
	crypto_generichash_update(&state, (const unsigned char *)job, strlen(job) + 1);
	crypto_generichash_final(&state, derived.bytes, sizeof derived.bytes);
	secret_format(&derived, text);
	secret_wipe(&derived);
}

void secret_format(const struct secret *secret, char text[65])
{
	sodium_bin2hex(text, 65, secret->bytes, sizeof secret->bytes);
}

void secret_fingerprint_bytes(const struct secret *secret, unsigned char out[8])
{
	static const char what[] = "berth fingerprint 1";
	unsigned char hash[32];

	crypto_generichash(hash, sizeof hash, (const unsigned char *)what, sizeof what,
			   secret->bytes, sizeof secret->bytes);
	memcpy(out, hash, 8);
}

void secret_fingerprint(const struct secret *secret, char text[17])
{
	unsigned char bytes[8];

	secret_fingerprint_bytes(secret, bytes);
	sodium_bin2hex(text, 17, bytes, sizeof bytes);
}

void secret_wipe(struct secret *secret)
{
	sodium_memzero(secret, sizeof *secret);
}

/* LeakSanitizer's, if it is linked in. */
extern __attribute__((weak)) void __lsan_do_leak_check(void);

void secret_protect_process(void)
{
	if (!__lsan_do_leak_check)
		prctl(PR_SET_DUMPABLE, 0);
}

/* ---- files ---- */

/* Find the path. *own: the user has named the file. */
static int find_path(const struct env *env, char *path, int size, bool *own, struct error *err)
{
	const char *named = env_get(env, "BERTH_SECRET_FILE"), *home = env_get(env, "HOME");
	int n;

	*own = named && *named;
	if (!*own && (!home || *home != '/'))
		return error_set(err, ERR_INPUT,
				 "cannot find the secret that all machines share: neither "
				 "BERTH_SECRET_FILE nor HOME is set");
	n = *own ? snprintf(path, (size_t)size, "%s", named)
		 : snprintf(path, (size_t)size, "%s/.config/berth/secret", home);
	if (n >= size)
		return error_set(err, ERR_INPUT, "the secret's path is longer than %d bytes", size);
	return 0;
}

/* Write the secret to a new file in path's directory, which is created if missing. *temp_path is
 * the file's name. */
static int write_new(const char *path, const struct secret *secret, char *temp_path, size_t size,
		     struct error *err)
{
	char text[DIGITS + 2], *slash;
	int fd, rc;

	snprintf(temp_path, size, "%s", path);
	slash = strrchr(temp_path, '/');
	*slash = '\0';
	if (access(temp_path, F_OK) && (rc = file_make_dirs(temp_path, err)))
		return rc;
	chmod(temp_path, 0700);
	snprintf(slash, size - (size_t)(slash - temp_path), "/.secret-%ld-XXXXXX", (long)getpid());
	fd = mkostemp(temp_path, O_CLOEXEC);
	if (fd < 0)
		return error_set(err, ERR_OUTPUT, "%s: %s", temp_path, strerror(errno));
	secret_format(secret, text);
	strcpy(text + DIGITS, "\n");
	rc = 0;
	if (fchmod(fd, 0600) || file_write_all(fd, text, DIGITS + 1) || fsync(fd)) {
		rc = error_set(err, ERR_IO, "%s: %s", temp_path, strerror(errno));
		unlink(temp_path);
	}
	close(fd);
	explicit_bzero(text, sizeof text);
	return rc;
}

/* Write the file completely under another name first. Several machines that share a home directory
 * may do this at once; the first one's file counts. */
static int make_file(const char *path, bool *made, struct error *err)
{
	char temp_path[4200];
	struct secret secret;
	int rc = secret_generate(&secret, err);

	if (!rc)
		rc = write_new(path, &secret, temp_path, sizeof temp_path, err);
	secret_wipe(&secret);
	if (rc)
		return rc;
	*made = !link(temp_path, path);
	if (!*made && errno != EEXIST)
		rc = error_set(err, ERR_OUTPUT, "%s: %s", path, strerror(errno));
	unlink(temp_path);
	return rc;
}

static int read_file(const char *path, struct secret *out, struct error *err)
{
	/* The path may name anything: opening a FIFO must not block, and a terminal must not become
	 * ours. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	/* The digits, "\r\n" and the NUL. A longer file is then too long for a secret, too. */
	char text[DIGITS + 3];
	struct stat info;
	ssize_t n = 0;
	int rc = 0;

	if (fd < 0)
		return error_set(err, ERR_INPUT, "%s: %s", path, strerror(errno));
	if (fstat(fd, &info) || !S_ISREG(info.st_mode))
		rc = error_set(err, ERR_DATA, "%s is not a regular file", path);
	else if (info.st_uid && info.st_uid != geteuid())
		rc = error_set(
			err, ERR_DATA,
			"%s belongs to user %u, who knows or can change the secret. Create a "
			"new one (openssl rand -hex 32) that belongs to you.",
			path, (unsigned)info.st_uid);
	else if (info.st_mode & 077)
		rc = error_set(err, ERR_DATA,
			       "%s has mode %04o: others can read or change the secret. Create a "
			       "new one (openssl rand -hex 32) with mode 0600.",
			       path, (unsigned)(info.st_mode & 07777));
	else
		n = read(fd, text, sizeof text - 1);
	close(fd);
	if (rc)
		return rc;
	text[n > 0 ? n : 0] = '\0';
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
		text[--n] = '\0';
	rc = secret_parse(text, out, err);
	explicit_bzero(text, sizeof text);
	return rc ? error_prefix(err, "%s", path) : 0;
}

int secret_file_read(const struct env *env, bool make, struct secret *out, bool *made, char *path,
		     int size, struct error *err)
{
	bool own;
	int rc;

	path[0] = '\0';
	*made = false;
	rc = find_path(env, path, size, &own, err);
	if (!rc && access(path, F_OK)) {
		if (own || !make)
			return error_set(err, ERR_INPUT,
					 "the secret %s is missing; all machines must share it. "
					 "Copy it from the first machine, or create one: (umask "
					 "077; openssl rand -hex 32 >%s)",
					 path, path);
		rc = make_file(path, made, err);
	}
	return rc ? rc : read_file(path, out, err);
}

int secret_file_create(const struct env *env, const struct secret *secret, char *path, size_t size,
		       struct error *err)
{
	const char *home = env_get(env, "HOME");
	char beside[4096];

	/* Only the directory of beside is used; 40 bytes are enough for the new file's name. */
	if (!home || *home != '/' ||
	    snprintf(beside, sizeof beside, "%s/.config/berth/secret", home) >=
		    (int)sizeof beside ||
	    strlen(beside) + 40 > size)
		return error_set(
			err, ERR_INPUT,
			"cannot pass the secret to the agents: PBS_JOBCOOKIE is not set, and HOME "
			"is not an absolute path. Set HOME, or use another --launcher.");
	return write_new(beside, secret, path, size, err);
}

int secret_file_load(const char *path, struct secret *out, struct error *err)
{
	int rc = read_file(path, out, err);

	if (rc == -ERR_INPUT && access(path, F_OK))
		return error_set(
			err, ERR_INPUT,
			"%s, which berth run created for this run, is missing on this node. If the "
			"nodes do not share the home directory, use another --launcher (ssh).",
			path);
	return rc;
}
