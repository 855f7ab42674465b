"""What schemathesis does not know by itself: an archive's body is bytes."""

import schemathesis


@schemathesis.serializer("application/x-tar")
def archive(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()
