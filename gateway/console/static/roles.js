// Rights of the user, so that pages offer only actions that the gateway would accept.

/** True if the user has one of these roles. Administrators have all; without authentication everybody is one. */
export function hasRole(session, ...roles) {
  return !session.user || session.role === "admin" || roles.includes(session.role);
}
